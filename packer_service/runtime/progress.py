"""Reports of long work, and how a terminal and a log show it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from preshard.schemas.files.printed import shown

if TYPE_CHECKING:
    from rich.status import Status

RATED = ("crops", "bytes")
"""Amounts whose speed is shown; the others are only counted."""

LOG_SECONDS, TERMINAL_SECONDS = 5.0, 0.2
"""Time between two lines of a phase in a log, and between two changes of a terminal's moving line."""

COMPILING = "compiling loops for this machine: half a minute, once; later runs take them from its cache"

LEAST_SECONDS = 0.1
"""Shorter phases have no speed worth showing."""


class Progress(Protocol):
    """Receives what is being done."""

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: Mapping[str, int] | None = None) -> None:
        """Reports that ``done`` of ``total`` are done; ``amounts`` are what this run has produced, by name."""


class NoProgress:
    """Says nothing."""

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: Mapping[str, int] | None = None) -> None: ...

    def close(self) -> None: ...


@dataclass(kw_only=True)
class _Phase:
    """Times at which a phase was first reported and last shown, and how much was done at first."""

    began: float
    done_before: int
    shown: float


class ConsoleProgress:
    """Shows on standard error what is being done: a line every few seconds in a log, one moving line on a terminal."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.started = time.monotonic()
        self.phases: dict[str, _Phase] = {}
        self.moving: Status | None = None
        self.said_compiling = False

    def note(self, message: str) -> None:
        line = self._stamp(shown(message))
        if self.moving is not None:
            self.moving.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def step(self, what: str, done: int, total: int, amounts: Mapping[str, int] | None = None) -> None:
        now = time.monotonic()
        phase = self.phases.setdefault(what, _Phase(began=now, done_before=done, shown=float("-inf")))
        if done < total and now - phase.shown < (TERMINAL_SECONDS if self.terminal else LOG_SECONDS):
            return
        phase.shown = now
        line = progress_line(what, done, total, amounts or {}, now - phase.began, done - phase.done_before)
        if done >= total or not self.terminal:
            self.close()
            self.note(line)
        else:
            self._move(line)

    def begin_compiling(self) -> None:
        """Says why nothing else moves: in a log once, on a terminal for as long as it takes."""
        if self.terminal:
            self._move(COMPILING)
        elif not self.said_compiling:
            self.said_compiling = True
            self.note(COMPILING)

    def close(self) -> None:
        """Removes the moving line and leaves the terminal as it was."""
        if self.moving is not None:
            self.moving.stop()
            self.moving = None

    def _move(self, line: str) -> None:
        from rich.console import Console
        from rich.text import Text

        text = Text(self._stamp(line))
        if self.moving is None:
            self.moving = Console(stderr=True).status(text)
            self.moving.start()
        self.moving.update(text)

    def _stamp(self, message: str) -> str:
        return f"[{time.monotonic() - self.started:6.1f} s] {message}"


def progress_line(
    what: str, done: int, total: int, amounts: Mapping[str, int], seconds: float, done_in_them: int
) -> str:
    """Line on the progress of a phase: its amounts, their speeds over ``seconds``, and an estimate of the time left."""
    parts = [f"{what}: {done} of {total}"]
    parts += [_amount(name, number, seconds) for name, number in amounts.items() if number or name not in RATED]
    if done_in_them > 0 and done < total:
        parts.append(f"about {_duration(seconds * (total - done) / done_in_them)} left")
    return ", ".join(parts)


def _amount(name: str, number: int, seconds: float) -> str:
    if name == "bytes":
        speed = f" ({number / 1e6 / seconds:.1f} MB/s)" if seconds >= LEAST_SECONDS else ""
        return f"{number / 1e6:,.1f} MB{speed}"
    speed = f" ({number / seconds:,.0f} a second)" if name in RATED and seconds >= LEAST_SECONDS else ""
    return f"{number:,} {name.removesuffix('s') if number == 1 else name}{speed}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"

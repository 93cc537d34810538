"""Reports of long work, and how a terminal and a log show it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from preshard.schemas.files.printed import shown
from preshard.waiting import Waiting

RATED = ("crops", "bytes")
"""Amounts whose speed is shown; the others are only counted."""

LOG_SECONDS, TERMINAL_SECONDS = 5.0, 0.2
"""Time between two lines of a phase in a log, and between two changes of a terminal's moving line."""

COMPILING = "compiling loops for this machine, once: some half a minute in all"

LEAST_SECONDS = 0.1
"""Shorter phases have no speed worth showing."""


class Progress(Protocol):
    """Receives what is being done."""

    def doing(self, what: str) -> None: ...

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: Mapping[str, int] | None = None) -> None:
        """Reports that ``done`` of ``total`` are done; ``amounts`` are what this run has produced, by name."""


class NoProgress:
    """Says nothing."""

    def doing(self, what: str) -> None: ...

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
    """Shows on standard error what is being done: a line every few seconds in a log, one moving line on a terminal.

    Args:
        what: what is done at first.
    """

    def __init__(self, what: str = "") -> None:
        self.waiting = Waiting(what)
        self.what = what
        self.phases: dict[str, _Phase] = {}
        self.said_compiling = False

    def doing(self, what: str) -> None:
        """Begins a phase that may pass without a step for some time."""
        self.what, self.said_compiling = what, False
        self.waiting.doing(what)

    def note(self, message: str) -> None:
        self.waiting.said.add(message)
        print(self.waiting.stamped(shown(message)), file=sys.stderr, flush=True)

    def step(self, what: str, done: int, total: int, amounts: Mapping[str, int] | None = None) -> None:
        now = time.monotonic()
        phase = self.phases.setdefault(what, _Phase(began=now, done_before=done, shown=float("-inf")))
        if done < total and now - phase.shown < (TERMINAL_SECONDS if self.waiting.is_terminal else LOG_SECONDS):
            return
        phase.shown = now
        line = progress_line(what, done, total, amounts or {}, now - phase.began, done - phase.done_before)
        if done >= total:
            self.doing("")
        if done >= total or not self.waiting.is_terminal:
            self.note(line)
        else:
            self.what = shown(line)
            self.waiting.doing(self.what)

    def begin_compiling(self) -> None:
        """Says why nothing else moves: in a log once in a phase, on a terminal for as long as it takes."""
        if not self.waiting.is_terminal and not self.said_compiling:
            self.note(COMPILING)
        self.said_compiling = True
        self.waiting.doing(COMPILING if self.waiting.is_terminal else "")

    def end_compiling(self) -> None:
        self.waiting.doing(self.what)

    def close(self) -> None:
        """Removes the moving line and leaves the terminal as it was."""
        self.waiting.close()


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

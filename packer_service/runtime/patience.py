"""Bounded waits: for a call, made in a thread of its own while signals arrive, and for a process that answers."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Time between two looks at a process that is awaited."""

_unanswered: list[threading.Thread] = []


class NoAnswerError(Exception):
    """A call did not return in time."""


def answer(function: Callable[[], T], seconds: float) -> T:
    """Returns or raises what ``function()`` does.

    Raises:
        NoAnswerError: it has done neither after ``seconds``. Its thread stays: see :func:`is_waited_for`.
    """
    found: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def call() -> None:
        try:
            found.put((function(), None))
        except BaseException as error:  # it belongs to the thread that waits
            found.put((None, error))

    thread = threading.Thread(target=call, daemon=True, name="request")
    _unanswered.append(thread)
    thread.start()
    try:
        value, error = found.get(timeout=seconds)
    except queue.Empty:
        raise NoAnswerError from None
    _unanswered.remove(thread)
    if error is not None:
        raise error
    result: T = value
    return result


def is_waited_for() -> bool:
    """Whether a call is still unanswered: the usual way out of the process would wait for it."""
    return any(thread.is_alive() for thread in _unanswered)


class Watchdog:
    """Looks at a process every second while an answer is awaited, and kills it when it has slept for too long.

    Looks are counted, not time, which passes while this process is stopped or the machine is suspended.
    """

    def __init__(self, process: subprocess.Popen[bytes], asleep_seconds: int | None) -> None:
        self.process = process
        self.asleep_seconds = asleep_seconds
        self.has_killed = False
        self._awaited = False
        self._asleep = 0
        self._before: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._over = threading.Event()
        if asleep_seconds is not None:
            threading.Thread(target=self._run, daemon=True, name="watchdog").start()

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """The process is looked at while the block runs, and may sleep for the whole time anew."""
        with self._lock:
            self._awaited, self._asleep, self._before = True, 0, ()
        try:
            yield
        finally:
            with self._lock:
                self._awaited = False

    def stop(self) -> None:
        """Ends the looking. Takes no lock, which a forked copy of the caller could find taken for ever."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS) and not self.has_killed:
            with self._lock:
                if self._awaited:
                    self._look()

    def _look(self) -> None:
        now = activity(self.process.pid)
        self._asleep = self._asleep + 1 if now == self._before and now[0] == "S" else 0
        self._before = now
        if self.asleep_seconds is not None and self._asleep >= self.asleep_seconds:
            self.has_killed = True
            self.process.kill()


def activity(pid: int) -> tuple[str, ...]:
    """State of a process (``S`` sleeps, ``D`` waits for a disk) and the processor time that it has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux: all that is known is that nothing came
        return ("S",)
    state, user_time, system_time = fields[0], fields[11], fields[12]
    return state, user_time, system_time

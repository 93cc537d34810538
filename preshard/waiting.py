"""One line on what a command is doing while nothing is printed: it moves at a terminal, and is plain in a log.

Both commands have it, the packer's and the trainer's, from before they import what takes seconds; and the reading of
their arguments.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

QUIET_SECONDS = {True: 0.5, False: 2.0}
"""Time without a word after which the line appears: at a terminal, and in a log."""

TICK_SECONDS = 0.1
FRAMES, PLAIN_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"


def with_home(arguments: Sequence[str] | None) -> list[str]:
    """Arguments with ``~/`` spelled out where bash leaves it: in quotation marks, and behind the ``=`` of an option.

    Otherwise ``--out=~/data`` would make a folder named ``~``, whose owner might remove it by that name.

    Args:
        arguments: of a command; None for those of this process.
    """
    given = sys.argv[1:] if arguments is None else arguments
    return [re.sub("^([^=]*=)?~(?=/|$)", lambda found: f"{found[1] or ''}{Path.home()}", each) for each in given]


class Waiting:
    """Says on standard error what is done. Whatever else this process prints appears above the moving line.

    In a log each text is printed once, and only where it has lasted for two seconds.

    Args:
        what: what is done at first.
    """

    def __init__(self, what: str) -> None:
        self.began = time.monotonic()
        _open_closed()
        self.is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"  # which cannot erase a line
        self.said = set[str]()
        """Texts that a log has already."""
        self._what, self._since = what, self.began
        self._lock, self._over = threading.RLock(), threading.Event()
        self._drawn = self._is_amid_line = False
        self._tick = 0
        self._streams = sys.stdout, sys.stderr
        self._ours: tuple[Any, Any] = self._streams
        if self.is_terminal:
            out = _Above(sys.stdout, self) if sys.stdout.isatty() else sys.stdout
            sys.stdout, sys.stderr = self._ours = out, _Above(sys.stderr, self)
            atexit.register(self.close)
            os.register_at_fork(after_in_child=self._restore)
        weakref.finalize(self, self._over.set)  # whoever forgets to close it hears no more of it, nor does the exit
        threading.Thread(target=_run, args=(weakref.ref(self), self._over), daemon=True, name="waiting").start()

    def doing(self, what: str) -> None:
        """Says from now on that this is done; an empty text stands for nothing worth a word."""
        with self._lock:
            self._what = what
            if not self.is_terminal:
                self._since = time.monotonic()

    def stamped(self, line: str) -> str:
        """A line behind the seconds since the beginning."""
        return f"[{time.monotonic() - self.began:6.1f} s] {line}"

    def close(self) -> None:
        """Removes the line and leaves the terminal as it was."""
        self._over.set()
        with self._lock:
            self._clear()
            self._restore()
            atexit.unregister(self.close)

    def _restore(self) -> None:
        """Gives the streams back; in a fork, too, which has no thread that draws and perhaps a copy of a taken lock."""
        if (sys.stdout, sys.stderr) == self._ours:
            sys.stdout, sys.stderr = self._streams
        for stream in self._ours:
            if isinstance(stream, _Above):
                stream.waiting = None

    def show(self) -> None:
        """Draws the line anew, or prints it, if it is time."""
        with self._lock:
            if self._over.is_set() or time.monotonic() - self._since < QUIET_SECONDS[self.is_terminal]:
                return
            if self.is_terminal:
                self._draw()
            elif self._what and self._what not in self.said:
                self.said.add(self._what)
                print(self.stamped(self._what), file=sys.stderr, flush=True)

    def _draw(self) -> None:
        if self._is_amid_line:
            return
        self._tick, stream = self._tick + 1, self._streams[1]
        frames = FRAMES if "utf" in (stream.encoding or "").lower() else PLAIN_FRAMES
        line = f"{frames[self._tick % len(frames)]} {self.stamped(self._what)}"[: _columns(stream) - 1]
        stream.write(f"\r\x1b[K{line}")
        stream.flush()
        self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            self._streams[1].write("\r\x1b[K")
            self._streams[1].flush()
            self._drawn = False

    def write(self, stream: TextIO, text: str) -> int:
        """Writes other text above the line, which comes back when that has ended its own."""
        with self._lock:
            self._clear()
            if text:
                self._is_amid_line, self._since = not text.endswith("\n"), time.monotonic()
            return stream.write(text)


class _Above:
    """A stream as before, but for the line that is below what is written to it."""

    def __init__(self, stream: TextIO, waiting: Waiting) -> None:
        self.stream = stream
        self.waiting: Waiting | None = waiting

    def write(self, text: str) -> int:
        return self.stream.write(text) if self.waiting is None else self.waiting.write(self.stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _run(waiting: weakref.ref[Waiting], over: threading.Event) -> None:
    while not over.wait(TICK_SECONDS):
        if (it := waiting()) is not None:
            it.show()
        del it


def _open_closed() -> None:
    """Drops what is printed where the shell has closed a stream (``2>&-``).

    Else the next file that is opened gets its number, and whatever libraries and other processes print there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open("w" if number else "r")  # noqa: SIM115 (to the end of the process)
            os.set_inheritable(stream.fileno(), stream.fileno() == number)
            setattr(sys, name, stream)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80

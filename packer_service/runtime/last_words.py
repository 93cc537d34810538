"""A line for a process that is ended before it can say one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

WAITS = "import sys; sys.stdin.buffer.read() or sys.stderr.write(sys.argv[1] + '\\n')"
"""Reads a byte that says that all is well, or finds that nobody is left to write it."""


@contextmanager
def last_words(line: str) -> Iterator[None]:
    """Has ``line`` written to standard error when this process ends inside the block without leaving it.

    Libraries in C can end a process at once: Ray does (``QuickExit``) when it sends a message to its process on this
    machine and that is gone. So does a SIGKILL. A small process waits for it, and ends with the block.
    """
    command = [sys.executable, "-I", "-S", "-c", WAITS, line]
    # a session of its own: Ctrl-C at the terminal is for this process, which then leaves the block
    waiting = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            waiting.communicate(b".")

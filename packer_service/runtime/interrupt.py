"""Ctrl-C and SIGTERM as one exception, and the way out of a process that cannot stop in order."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from preshard.packer_service.runtime.scratch import remove_scratch_folders

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = "interrupted; run the same command again to continue"

SHOW_CURSOR = "\x1b[?25h"


DEAF_SECONDS = 5.0
"""Longest wait for the main thread to notice a signal. Inside C code, such as a request to a store that does not
answer, Python runs no handler; compiled loops of planning may take as long, and are no loss when they are ended."""
STOP_SECONDS = 30.0
"""Longest wait for work that was interrupted to stop in order. Ray takes some seconds; a store may never answer."""


class Interrupted(BaseException):
    """The process was asked to stop. Not an ``Exception``: whoever handles errors should not take it for one."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


@contextmanager
def interruptible(deaf_seconds: float = DEAF_SECONDS, stop_seconds: float = STOP_SECONDS) -> Iterator[None]:
    """Turns the first signal inside the block into :class:`Interrupted`; the second has its default effect.

    A block that does not notice the signal, or does not end after it, ends with the process: one line, and the exit
    status of an interrupted command. Outside the main thread, where Python runs no handlers, nothing is changed.

    Args:
        deaf_seconds: longest wait until the main thread notices the signal; a second signal shortens it.
        stop_seconds: longest wait until the block has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _Guard(deaf_seconds, stop_seconds) as guard:
        before = {number: signal.signal(number, guard.interrupt) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Guard:
    """Sees signals in a thread of its own, and ends the process when the main thread does not.

    The C part of Python's signal handling writes each signal's number into a pipe as soon as it arrives, whatever the
    main thread is doing (``signal.set_wakeup_fd``).
    """

    def __init__(self, deaf_seconds: float, stop_seconds: float) -> None:
        self.deaf_seconds = deaf_seconds
        self.stop_seconds = stop_seconds
        self.heard = threading.Event()
        self.ended = threading.Event()

    def __enter__(self) -> _Guard:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self.before = signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        self.thread = threading.Thread(target=self._watch, daemon=True, name="signals")
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self.before)
        self.ended.set()
        os.close(self.writer)  # which the thread reads as the end
        self.thread.join()
        os.close(self.reader)

    def interrupt(self, number: int, _frame: FrameType | None) -> None:
        """The handler of the main thread."""
        self.heard.set()
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        raise Interrupted(number)

    def _watch(self) -> None:
        while number := self._next(None):
            # others may handle signals for a while, as uvicorn does while it serves; in this order, since our handler
            # takes itself away once it has set the event
            if signal.getsignal(number) == self.interrupt or self.heard.is_set():
                break
        else:
            return
        self._next(self.deaf_seconds)
        if self.ended.is_set() or (self.heard.is_set() and self.ended.wait(self.stop_seconds)):
            return
        exit_at_once(INTERRUPTED, 128 + number)

    def _next(self, seconds: float | None) -> int:
        """The next signal, 0 when there is none in that time or the block has ended."""
        if not select.select([self.reader], [], [], seconds)[0]:
            return 0
        data = os.read(self.reader, 1)
        return data[0] if data else 0


def _forget_in_child() -> None:
    """A forked process shares the pipe: signals to it are not signals to this process."""
    with suppress(ValueError):  # forked from another thread than the main one
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_in_child)


def exit_at_once(message: str, status: int = 1) -> NoReturn:
    """Ends the process with one line, and removes what it keeps in the folder for temporary files.

    The usual way out waits for threads and for ``atexit`` hooks: Ray's wait for a Ray that is gone, and those of
    pyarrow's filesystems for requests that nobody answers.
    """
    cursor = SHOW_CURSOR if sys.stderr.isatty() else ""  # a moving line of progress hides it
    print(f"{cursor}preshard: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    remove_scratch_folders()
    os._exit(status)

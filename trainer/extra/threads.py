"""Threads beside a reader, and what they may finish as their process ends.

Python ends a thread wherever it next asks for the interpreter once that is gone. Inside of torch's or Arrow's C++ this
aborts the process: "terminate called without an active exception".
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.util import Finalize
from typing import TypeVar

Made = TypeVar("Made")

FEEDER = "QueueFeederThread"
"""Name that ``multiprocessing`` gives to the thread that sends what a process has put into a queue."""

LONGEST_WAIT = 1.0
"""Seconds that an ending process waits for such threads. A loader that is gone takes nothing any more, and a store may
not answer; then a thread waits in a system call, where its end does no harm."""

AFTER_QUEUES_CLOSE = 5
"""Priority of a finaliser that runs after those that close the queues (10)."""

ENDS = threading.Event()
"""Set when the process ends: nothing is worth a pause any more."""

_begun: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_registered = set[int]()
"""Processes that will wait for their threads: a fork has neither these nor what its parent registered."""


def finish_sending_at_exit() -> None:
    """Makes this loader's worker wait, as it ends, for the last batches that it sends: torch's does not."""
    Finalize(None, let_feeders_end, exitpriority=AFTER_QUEUES_CLOSE)


def let_feeders_end() -> None:
    """Waits until the worker's last batches are sent."""
    for thread in threading.enumerate():
        if thread.name == FEEDER:
            thread.join(LONGEST_WAIT)


def start(call: Callable[[], Made]) -> Future[Made]:
    """Calls in a thread of its own that keeps no process alive."""
    future: Future[Made] = Future()

    def run() -> None:
        try:
            made = call()
        except BaseException as error:  # whoever waits for it raises it
            future.set_exception(error)
        else:
            future.set_result(made)

    if os.getpid() not in _registered:
        _registered.add(os.getpid())
        Finalize(None, _let_begun_end, exitpriority=AFTER_QUEUES_CLOSE)
    thread = threading.Thread(target=run, daemon=True, name="preshard-reader")
    _begun.add(thread)
    thread.start()
    return future


def _let_begun_end() -> None:
    ENDS.set()
    until = time.monotonic() + LONGEST_WAIT
    for thread in list(_begun):
        thread.join(max(0.0, until - time.monotonic()))

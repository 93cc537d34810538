"""A loader's worker: which one of how many, and how its process ends."""

from __future__ import annotations

import threading
from multiprocessing.util import Finalize
from typing import NamedTuple

from torch.utils.data import get_worker_info

FEEDER = "QueueFeederThread"
"""Name that ``multiprocessing`` gives to the thread that sends what a process has put into a queue."""

LONGEST_WAIT = 1.0
"""Seconds that an ending worker waits for what it is sending. A loader that is gone takes nothing any more; then the
thread waits in a system call, where its end does no harm."""

AFTER_QUEUES_CLOSE = 5
"""Priority of a finaliser that runs after those that close the queues (10)."""


class Share(NamedTuple):
    """Number of this worker, from 0, and number of workers: of n, it reads every n-th step."""

    worker: int
    workers: int


def worker_share() -> Share | None:
    """The share of the worker process that this is; None outside of workers."""
    worker = get_worker_info()
    return None if worker is None else Share(worker.id, worker.num_workers)


def finish_sending_at_exit() -> None:
    """Makes this worker wait, as it ends, for what it is sending."""
    Finalize(None, let_feeders_end, exitpriority=AFTER_QUEUES_CLOSE)


def let_feeders_end() -> None:
    """Waits until the worker's last batches are sent.

    torch's worker ends without waiting for the thread that sends them. Python then ends that thread wherever it next
    asks for the interpreter, and inside torch's C++ that aborts the process: "terminate called without an active
    exception".
    """
    for thread in threading.enumerate():
        if thread.name == FEEDER:
            thread.join(LONGEST_WAIT)

"""What a loader's worker is: which one of how many, and how its process ends."""

from __future__ import annotations

import threading
from multiprocessing.util import Finalize

from torch.utils.data import get_worker_info

FEEDER = "QueueFeederThread"
"""Name that ``multiprocessing`` gives to the thread that sends what a process has put into a queue."""

LONGEST_WAIT = 1.0
"""Seconds that an ending worker waits for what it is sending. A loader that is gone takes nothing any more; then the
thread waits in a system call, where its end does no harm."""

AFTER_QUEUES_CLOSE = 5
"""Priority of a finaliser that runs after those that close the queues (10)."""


def worker_share() -> tuple[int, int]:
    """The number of this worker and how many there are; (0, 1) outside workers."""
    worker = get_worker_info()
    if worker is None:
        return 0, 1
    Finalize(None, let_feeders_end, exitpriority=AFTER_QUEUES_CLOSE)
    return worker.id, worker.num_workers


def let_feeders_end() -> None:
    """Waits until the worker's last batches are sent.

    torch's worker ends without waiting for the thread that sends them. Python then ends that thread wherever it next
    asks for the interpreter, and inside torch's C++ that aborts the process: "terminate called without an active
    exception".
    """
    for thread in threading.enumerate():
        if thread.name == FEEDER:
            thread.join(LONGEST_WAIT)

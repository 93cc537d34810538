"""A process, run with ``python -m``, that imports what reading takes and then forks processes that have it.

A Python process that imports all of it takes more than a second of processor time to start; a fork takes some
milliseconds, and a process that is ended whenever a dataset hangs it must be cheap to replace. Nothing here starts a
thread or opens the root, so that a fork finds no lock taken.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

MOST_BYTES = 1 << 20
"""Bytes of the settings, which come first; each later message is a single byte, with a new process's socket to fork it,
and without one to load what the first questions rarely need."""


def main(descriptor: int) -> None:
    """Forks a process for every socket that comes; ends, and with it all of them, when no more can come."""
    from preshard.packer_service.http.app import create_inner
    from preshard.packer_service.http.settings import ServiceSettings
    from preshard.packer_service.http.workers.preload import preload, preload_slowly
    from preshard.packer_service.http.workers.worker import run

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is the listening process's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes ended processes away
    orders = socket.socket(fileno=descriptor)
    app = create_inner(ServiceSettings.model_validate_json(orders.recv(MOST_BYTES)))
    preload()
    rest, parts = preload_slowly(), 0
    while True:
        while parts and not select.select([orders], [], [], 0)[0]:  # a new process waits for one part at most
            parts -= 1
            next(rest, None)
        order, descriptors, _, _ = socket.recv_fds(orders, 1, 1)
        if not order:
            os._exit(0)
        if not descriptors:
            parts += 1
            continue
        parts = 0  # who asks has the processors to himself; what is left is ordered again once nobody asks
        if os.fork() == 0:
            orders.close()
            run(descriptors[0], app)
            os._exit(0)
        os.close(descriptors[0])


if __name__ == "__main__":
    main(int(sys.argv[1]))

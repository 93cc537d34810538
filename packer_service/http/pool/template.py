"""The process that others are forked from, as its parent sees it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from preshard.packer_service.http.settings import ServiceSettings

START_SECONDS = 60.0
"""Longest wait for the first answer of a new process: importing everything takes seconds on a busy machine."""

MOST_LOADS = 8
"""Parts of what is loaded slowly, or more."""


class Template:
    """Starts processes that read. Runs as long as this object is not closed; one that has ended is started again."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._loads = 0

    def fork(self) -> socket.socket:
        """Our end of a new process's socket. If no process can be started, the other end is closed at once."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._connected(), [b"f"], [theirs.fileno()])
                self._loads = 0  # it forgets what it has not loaded yet
            except OSError:
                self.close()  # it has ended; the next call starts another one
        ours.setblocking(False)
        return ours

    def start(self) -> None:
        """Starts importing, so that the first question need not wait for all of it."""
        self._connected()

    def load(self) -> None:
        """Has it load the next part of what the first questions rarely need, if there is any left.

        While it does, no process starts, and where processors are few those that answer wait for it.
        """
        if self._orders is not None and self._loads < MOST_LOADS:
            self._loads += 1
            with suppress(OSError):  # it has ended
                self._orders.send(b"l")

    def _connected(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._orders is None:
            self._loads = 0
            self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "preshard.packer_service.http.workers.template", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=_environment(),
                )
            self._orders.send(self.settings.model_dump_json(exclude={"token"}).encode())
            self._orders.setblocking(False)  # orders that nobody takes are refused, and this process never waits
        return self._orders

    def close(self) -> None:
        """Ends the process, and with it all that it has forked."""
        orders, process = self._orders, self._process
        self._orders = self._process = None
        if orders is not None:
            orders.close()
        if process is not None:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """Ours, with the modules that we find, and with libraries that use few threads and return memory."""
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own = {"PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
    return {name: value for name, value in os.environ.items() if name != "PRESHARD_TOKEN"} | threads | own

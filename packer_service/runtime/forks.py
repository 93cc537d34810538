"""Workers forked from a process that has imported what they need: each starts in milliseconds, and can be killed.

A Python process that imports all of it takes more than a second of processor time to start. The template, which runs
with ``python -m``, starts no thread and opens no file, so that a fork finds no lock taken. A fork answers several calls
at a time, each in a thread. Its answers are bytes and not pickles: what a process says that has read a hostile file
must not run anything here.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from preshard.packer_service.runtime.process import MAX_ANSWER, confine, data_bytes, end_with_parent, start

START_SECONDS = 60.0
"""Longest wait for a new process: importing everything takes seconds on a busy machine."""

QUIET_SECONDS = 5.0
"""Time without an order after which the template loads the next part of what the first calls rarely need."""

BEHIND, FAR_BEHIND = 2, 10
"""Steps of ``nice`` between a caller and its fork, and one that has worked for long: a tenth of what others get where
they compete, and everything where they do not."""


class EndedError(Exception):
    """The process ended before it answered."""


class Template:
    """The process that others are forked from; started with the first of them, and again if it has ended.

    Args:
        preload: ``module:function`` that imports what forks need, and returns an iterator over what may come later.
    """

    def __init__(self, preload: str) -> None:
        self.preload = preload
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def start(self) -> None:
        """Begins to import, so that the first fork need not wait for all of it."""
        with self._lock:
            self._connect()

    def fork(self, memory: int) -> Fork:
        """A new process that may take so many bytes beyond what was imported. If none can be started, it has ended."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                socket.send_fds(self._connect(), [str(memory).encode()], [theirs.fileno()])
            except OSError:
                self._stop()  # it has ended; the next call starts another one
        return Fork(ours)

    def close(self) -> None:
        """Ends the process, and with it all that it has forked."""
        with self._lock:
            self._stop()

    def _connect(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._orders is None:
            self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = start(
                    "preshard.packer_service.runtime.forks",
                    theirs.fileno(),
                    self.preload,
                    descriptors=[theirs.fileno()],
                    MALLOC_ARENA_MAX="2",
                )
            self._orders.setblocking(False)  # orders that nobody takes are refused, and this process never waits
        return self._orders

    def _stop(self) -> None:
        orders, process = self._orders, self._process
        self._orders = self._process = None
        if orders is not None:
            orders.close()
        if process is not None:
            process.kill()
            process.wait()


class Fork:
    """One forked process. Safe for threads, each of which makes a call of its own."""

    def __init__(self, control: socket.socket) -> None:
        self.pid: int | None = None
        self.is_over = False
        self._control = control
        self._channels: list[socket.socket] = []
        self._idle: list[Connection] = []
        self._shared_bytes = 0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Waits until the process has started.

        Raises:
            EndedError: it has not.
        """
        with self._lock:
            if self.pid is not None:
                return
            try:
                self._control.settimeout(START_SECONDS)
                self.pid = int(self._control.recv(32))
            except (OSError, ValueError):
                self.is_over = True
        if self.is_over:  # also where it was killed before its number was known
            self.kill()
            raise EndedError
        self._shared_bytes = self._resident_bytes()

    def call(self, function: Callable[..., bytes], *args: Any) -> bytes:
        """Calls a module's function there, and returns its result.

        Raises:
            EndedError: the process has ended, or what it sent is no answer.
        """
        self.wait()
        request = pickle.dumps((function, args))
        try:
            channel = self._idle.pop() if self._idle else self._open_channel()
            channel.send_bytes(request)
            answer = channel.recv_bytes(MAX_ANSWER)
        except (EOFError, OSError):
            self.kill()
            raise EndedError from None
        self._idle.append(channel)
        return answer

    def _open_channel(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            self._channels.append(ours)
            socket.send_fds(self._control, [b"c"], [theirs.fileno()])
            if self.is_over:
                raise EOFError
        return Connection(os.dup(ours.fileno()))

    def kill(self) -> None:
        """Kills it, and whatever it has started; calls in it raise :class:`EndedError`.

        Nobody waits for its end: a process inside a filesystem that does not answer cannot be killed, only left alone.
        """
        self.is_over = True
        if self.pid is not None:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        for each in (self._control, *self._channels):
            with suppress(OSError):  # closing it would not wake a thread that reads
                each.shutdown(socket.SHUT_RDWR)

    def lower_priority(self) -> None:
        """Makes all of its threads less urgent than those of others."""
        if self.pid is not None:
            with suppress(OSError):
                os.setpriority(os.PRIO_PGRP, self.pid, FAR_BEHIND)

    def own_bytes(self) -> int:
        """Memory that it has taken since it started; what it had then belongs to the template."""
        return max(self._resident_bytes() - self._shared_bytes, 0)

    def _resident_bytes(self) -> int:
        with suppress(OSError, ValueError):  # 0 where the system does not say
            resident, shared = map(int, Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1:3])
            return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def processor_seconds(self) -> float:
        """Time that its threads have spent on processors; 0 where the system does not say."""
        with suppress(OSError, ValueError):
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
            fields = stat.rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0


def main(descriptor: int, preload: str) -> None:
    """Forks a process for every socket that comes; ends, and with it all of them, when no more can come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is the caller's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes ended processes away
    orders = socket.socket(fileno=descriptor)
    module, _, function = preload.partition(":")
    rest: Iterator[None] | None = getattr(importlib.import_module(module), function)()
    while True:
        if rest is not None and not select.select([orders], [], [], QUIET_SECONDS)[0]:
            rest = rest if next(rest, orders) is not orders else None
            continue
        order, descriptors, _, _ = socket.recv_fds(orders, 32, 1)
        if not order:
            os._exit(0)
        if os.fork() == 0:
            try:
                orders.close()
                _work(socket.socket(fileno=descriptors[0]), int(order))
            finally:  # also without the memory to say why
                os._exit(1)
        os.close(descriptors[0])


def _work(control: socket.socket, memory: int) -> None:
    """Answers calls in a forked process, which ends when no more can come."""
    end_with_parent()
    with suppress(OSError):
        os.nice(BEHIND)
    confine(memory + data_bytes())
    with suppress(OSError):
        control.send(str(os.getpid()).encode())
    while True:
        descriptors: list[int] = []
        with suppress(OSError):
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            os._exit(0)  # threads may be in the middle of anything, and nobody waits for it
        threading.Thread(target=_answer, args=(Connection(descriptors[0]),), daemon=True).start()


def _answer(channel: Connection) -> None:
    while True:
        try:
            request = channel.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            function, args = pickle.loads(request)
            answer = function(*args)
        except BaseException:
            try:
                traceback.print_exc()
            finally:  # also without the memory to say why
                os._exit(1)
        with suppress(OSError):
            channel.send_bytes(answer)
        del request, args, answer


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

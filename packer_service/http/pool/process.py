"""One process that reads, as the process that listens sees it."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any

from preshard.packer_service.http.pool.frames import BrokenFrameError, Frame, encode_frame, read_frame

LARGEST_BUFFER = 4 << 20
"""Bytes of an answer that are read ahead."""


FAR_BEHIND = 10
"""How much less urgent (``nice``) a process is that has worked for long: a tenth of what others get where they compete,
and everything where they do not. The least urgent of all would come to nothing on a busy machine."""

LEAST_SHARE, MOST_SHARE = 0.02, 0.5
"""Part of the time that a process had for an answer in which it worked. Between them it was the machine that was busy;
below it has slept, and above it has worked, and is itself to blame."""


class EndedError(Exception):
    """The process ended before it answered. ``is_own`` where what it did, and not this side, was the cause."""

    def __init__(self, reason: str, *, is_own: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_own = is_own


class ReadingProcess:
    """Asked over a socket, several questions at a time; ended without a word.

    Attributes:
        users: requests that are being answered by it or wait for it.
        used: when it was last of use, by the monotonic clock.
        answered: when it last answered, or became busy.
        urgent_seconds: time without an answer after which it stands behind others for a processor.
    """

    def __init__(self, key: Hashable, connection: socket.socket, threads: int, told: Callable[[Frame], None]) -> None:
        self.key = key
        self.pid: int | None = None
        self.users = 0
        self.used = self.answered = time.monotonic()
        self.ended: EndedError | None = None
        self.is_behind = False
        self.urgent_seconds = math.inf
        self.cache = [0, 0, 0, 0]
        self._told = told
        self._turns = asyncio.Semaphore(threads)
        self._shared_bytes = 0
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._number = 0
        self._ready = asyncio.Event()
        self.over = asyncio.Event()
        self._connection = connection
        self._writer: asyncio.StreamWriter | None = None
        self._reading = asyncio.ensure_future(self._read())

    @property
    def is_idle(self) -> bool:
        return not self.users

    @property
    def is_busy(self) -> bool:
        """Whether an answer is owed."""
        return bool(self._pending)

    async def wait(self) -> None:
        """Until the process has started.

        Raises:
            EndedError: it has ended.
        """
        await self._ready.wait()
        if self.ended is not None:
            raise self.ended

    def tell(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Sends what needs no answer."""
        if self._writer is not None and self.ended is None:
            self._writer.write(encode_frame(head, body))

    async def ask(self, head: dict[str, Any], body: bytes, seconds: float) -> Frame:
        """The answer to one question. The time begins when the process begins to work on it.

        Raises:
            EndedError: the process has ended, because it took longer than that or for any other reason.
        """
        await self.wait()
        async with self._turns:
            if self.ended is not None:
                raise self.ended
            self._number += 1
            number = self._number
            if not self._pending:
                self.answered = time.monotonic()
            future = self._pending[number] = asyncio.get_running_loop().create_future()
            used = self.processor_seconds()
            self.tell({**head, "id": number}, body)
            try:
                async with asyncio.timeout(seconds):
                    return await future
            except TimeoutError:
                share = (self.processor_seconds() - used) / seconds
                is_own = not LEAST_SHARE < share < MOST_SHARE
                self.end(f"an answer took longer than {seconds:g} seconds", is_own=is_own)
                assert self.ended is not None
                raise self.ended from None
            finally:
                self._pending.pop(number, None)

    async def _read(self) -> None:
        try:
            reader, self._writer = await asyncio.open_connection(sock=self._connection, limit=LARGEST_BUFFER)
            while True:
                self._take(await read_frame(reader))
        except (EOFError, BrokenFrameError, OSError):
            # one that has not even started has read nothing
            self.end("the process that read it ended", is_own=self.pid is not None)

    def _take(self, frame: Frame) -> None:
        self.answered = time.monotonic()
        head = frame.head
        if "ready" in head:
            self.pid = int(head["ready"])
            self._shared_bytes = self._resident_bytes()
            self._told(frame)
            self._ready.set()
            return
        future = self._pending.get(head.get("id", 0))
        if future is None:
            self._told(frame)
        elif not future.done():
            self.cache = head.get("cache", self.cache)
            future.set_result(frame)

    def fall_behind(self) -> None:
        """Makes all of its threads less urgent than those of the others: it has worked for long, and others wait."""
        if self.pid is not None and not self.is_behind:
            self.is_behind = True
            with suppress(OSError):
                os.setpriority(os.PRIO_PGRP, self.pid, FAR_BEHIND)

    def own_bytes(self) -> int:
        """Memory that it has taken since it started; what it had then belongs to the process it was forked from."""
        return max(self._resident_bytes() - self._shared_bytes, 0)

    def _resident_bytes(self) -> int:
        """Memory that is no file's; 0 where the system does not say."""
        with suppress(OSError, ValueError):
            resident, shared = map(int, Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1:3])
            return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def processor_seconds(self) -> float:
        """Time that its threads have spent on processors; 0 where the system does not say."""
        with suppress(OSError, ValueError):
            fields = (
                Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            )
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def end(self, reason: str, *, is_own: bool = False) -> None:
        """Kills it, and whatever it has started; who waits for an answer gets an :class:`EndedError`.

        Nobody waits for its end: a process inside a filesystem that does not answer cannot be killed, only left alone.
        """
        if self.ended is not None:
            return
        self.ended = EndedError(reason, is_own=is_own)
        self._ready.set()
        self.over.set()
        if self.pid is not None:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._writer is not None:
            self._writer.transport.abort()
        else:
            self._connection.close()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self.ended)
        self._reading.cancel()

"""An object store in front of another one, which answers late or never about some names: a filesystem that hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

LATE, NEVER, NEVER_LISTED = "answers-late", "answers-never", "lists-never"
"""Datasets whose objects come late or never, and one whose folder cannot even be listed."""

LATE_SECONDS = 3.0


def seconds_of(request: bytes) -> float | None:
    """How long a request waits, by the name that it asks for; None for ever."""
    line = unquote(request.split(b"\r\n", 1)[0].decode("latin-1"))
    is_listing = "list-type=2" in line
    if NEVER_LISTED in line or (NEVER in line and not is_listing and "manifest.json" not in line):
        return None
    return LATE_SECONDS if LATE in line and not is_listing else 0.0


class _Proxy:
    """Passes whole connections on, and looks at each request's first line."""

    def __init__(self, behind: int) -> None:
        self.behind = behind
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                seconds = seconds_of(request)
                if seconds is None:
                    await reader.read()  # until the client has had enough
                    break
                await asyncio.sleep(seconds)
                await self._answer(request, writer)
        writer.close()

    async def _answer(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        """One answer of the store behind, over a connection of its own; only what has no body is asked."""
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self.behind)
        line, rest = request.split(b"\r\n", 1)
        back_writer.write(line + b"\r\nConnection: close\r\n" + _without_connection(rest))
        answer = await back_reader.readuntil(b"\r\n\r\n")
        writer.write(_without_connection(answer))
        while block := await back_reader.read(1 << 16):
            writer.write(block)
            await writer.drain()
        back_writer.close()
        if b"content-length" not in answer.lower():
            writer.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _without_connection(head: bytes) -> bytes:
    return b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:"))


@contextmanager
def slow_store(behind: int) -> Iterator[int]:
    """A port at which the store behind another one answers, where it answers; for reading alone.

    Args:
        behind: the port of the store.
    """
    proxy = _Proxy(behind)
    proxy.start()
    try:
        yield proxy.port
    finally:
        proxy.stop()

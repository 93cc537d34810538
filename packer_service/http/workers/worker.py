"""One process that reads: answers the questions about a dataset, or looks through the root, until it is ended."""

from __future__ import annotations

import asyncio
import os
import socket
import traceback
from functools import partial
from typing import Any

import anyio.to_thread
from fastapi import FastAPI
from starlette.types import Message

from preshard.packer_service.http.dataset.shelf import Shelf
from preshard.packer_service.http.pool.frames import Frame, encode_frame, read_frame
from preshard.packer_service.http.service import ServiceState
from preshard.packer_service.http.workers.confine import confine
from preshard.packer_service.http.workers.scan import Scanner

LARGEST_FRAME_BUFFER = 1 << 20
"""Bytes that wait unread in this process; questions are short."""


def run(descriptor: int, app: FastAPI) -> None:
    """Serves one socket; returns when its other end closes."""
    service: ServiceState = app.state.service
    confine(service.settings.process_memory)
    asyncio.run(_Worker(app).serve(socket.socket(fileno=descriptor)))


class _Worker:
    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.service: ServiceState = app.state.service
        self.scanner = Scanner(self.service.settings)
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, connection: socket.socket) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = self.service.settings.threads
        reader, self.writer = await asyncio.open_connection(sock=connection, limit=LARGEST_FRAME_BUFFER)
        self._send({"ready": os.getpid()})
        while True:
            try:
                frame = await read_frame(reader)
            except EOFError:
                os._exit(0)  # threads may be in the middle of anything, and nobody waits for it
            task = asyncio.ensure_future(self._act(frame))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def _send(self, head: dict[str, Any], body: bytes = b"") -> None:
        self.writer.write(encode_frame(head, body))

    async def _act(self, frame: Frame) -> None:
        head = frame.head
        if "places" in head:
            self.service.catalog = Shelf(self.service.settings, self.service.cache, head["places"])
        if "cache_bytes" in head:
            self.service.cache.resize(head["cache_bytes"])
        if "skip" in head:
            await self._scan(head["skip"], alone=bool(head["alone"]))
        if "leave" in head:
            self.scanner.leave(head["leave"])
        if "scope" in head:
            await self._answer(head["id"], head["scope"], frame.body)

    async def _scan(self, skip: list[str], *, alone: bool) -> None:
        loop = asyncio.get_running_loop()

        def tell(head: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(self._send, head)

        try:
            await anyio.to_thread.run_sync(partial(self.scanner.scan, frozenset(skip), tell, alone=alone))
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the listening process leaves out the folder over which this happened

    async def _answer(self, number: int, asked: dict[str, Any], body: bytes) -> None:
        exchange = _Exchange(asked, body)
        try:
            await self.app(exchange.scope, exchange.receive, exchange.send)
        except MemoryError:
            self._send({"id": number, "failed": "memory"})
            return
        except Exception as error:  # the listening process logs it, under the id that it gave the request
            self._send({"id": number, "failed": "error", "error": "".join(traceback.format_exception(error))})
            return
        cache = self.service.cache
        self._send(
            {
                "id": number,
                "status": exchange.status,
                "headers": exchange.headers,
                "broken": self.service.catalog.broken(),
                "cache": [cache.bytes, len(cache), cache.hits, cache.misses],
            },
            b"".join(exchange.parts),
        )
        await self.writer.drain()


class _Exchange:
    """A request and its answer, whole."""

    def __init__(self, asked: dict[str, Any], body: bytes) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "server": None,
            "client": None,
            "root_path": "",
            "method": asked["method"],
            "path": asked["path"],
            "raw_path": asked["raw_path"].encode("latin-1"),
            "query_string": asked["query"].encode("latin-1"),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in asked["headers"]],
            "request_id": asked["request_id"],
        }
        self.body: bytes | None = body
        self.status = 500
        self.headers: list[tuple[str, str]] = []
        self.parts: list[bytes] = []

    async def receive(self) -> Message:
        if self.body is None:
            await asyncio.Event().wait()  # the client is still there, as far as anyone here knows
        body, self.body = self.body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
        else:
            self.parts.append(message.get("body", b""))

"""Text leaves the service compressed where the client can read that: Plotly alone has 4.8 MB."""

from __future__ import annotations

import gzip

from anyio import to_thread
from cachetools import LRUCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST_BYTES = 1024
"""Shorter bodies fit into one packet as they are."""

MOST_BYTES = 16 << 20
"""Longer bodies are sent as they are: compressing would hold them in memory twice."""

LEVEL = 5
"""A third of the time of the usual 9, for answers of which each is some percent longer."""

KEPT_BYTES = 8 << 20
"""Compressed files of the page that are kept: all of them."""

TYPES = ("application/json", "application/problem+json", "text/", "image/svg+xml", "application/javascript")
"""Types of content that gets shorter. Crops are compressed already."""


class Compress:
    """Answers with gzip (RFC 9110, section 8.4.1.3) what is long enough and text.

    Starlette's own middleware compresses crops too, in the thread of the event loop, and a file of the page anew for
    every client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.kept: LRUCache[tuple[str, str], bytes] = LRUCache(KEPT_BYTES, getsizeof=len)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await self.app(scope, receive, _Answer(self, scope, send).take)


class _Answer:
    """An answer on its way; held back until it is whole if it will be compressed."""

    def __init__(self, compress: Compress, scope: Scope, send: Send) -> None:
        self.compress, self.scope, self.send = compress, scope, send
        self.start: Message | None = None
        self.parts: list[bytes] = []

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=[*message["headers"]])  # a copy, since the answer may be kept and sent again
            message = {**message, "headers": headers.raw}
            if _is_text(message["status"], headers):
                headers.add_vary_header("Accept-Encoding")
                declared = headers.get("content-length", "")
                if accepts_gzip(self.scope) and declared.isdigit() and is_worth_compressing(int(declared)):
                    self.start = message
                    return
        if self.start is None:
            await self.send(message)
            return
        self.parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            start, self.start = self.start, None
            headers = MutableHeaders(raw=start["headers"])
            tag = headers.get("etag", "")
            body = await self._compressed(tag, b"".join(self.parts))
            headers.update({"content-encoding": "gzip", "content-length": str(len(body))})
            del headers["accept-ranges"]
            if tag and not tag.startswith("W/"):  # that of another form of the same answer (RFC 9110, section 8.8.1)
                headers["etag"] = f"W/{tag}"
            await self.send(start)
            await self.send({"type": "http.response.body", "body": body})

    async def _compressed(self, tag: str, body: bytes) -> bytes:
        """Files of the page, which have a tag of their own, are compressed once."""
        key = (self.scope["path"], tag)
        if tag and key in self.compress.kept:
            return self.compress.kept[key]
        small: bytes = await to_thread.run_sync(gzip.compress, body, LEVEL)
        if tag and len(small) <= KEPT_BYTES and self.scope["path"].startswith("/static/"):
            self.compress.kept[key] = small
        return small


def is_worth_compressing(n_bytes: int) -> bool:
    """Whether a text of so many bytes is compressed for who reads that."""
    return LEAST_BYTES <= n_bytes <= MOST_BYTES


def accepts_gzip(scope: Scope) -> bool:
    """Whether the client names gzip among what it decodes, and does not refuse it (RFC 9110, section 12.5.3)."""
    accepted = b",".join(value for name, value in scope["headers"] if name == b"accept-encoding").decode("latin-1")
    for part in accepted.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _is_text(status: int, headers: Headers) -> bool:
    kind = headers.get("content-type", "")
    return status not in (204, 206, 304) and "content-encoding" not in headers and kind.startswith(TYPES)

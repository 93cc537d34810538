"""Connections that cannot be held open by doing nothing: by headers that never end, or an answer that nobody takes."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEADER_SECONDS = 10.0
"""Longest time in which a request's line and headers arrive, from the moment at which the connection is free for it."""

MOST_HEADER_BYTES = 64 << 10
"""Most bytes of a request's line and headers, or between two pieces of its body, as uvicorn's other parser has it.

What arrives together with a request's first bytes, or a piece's last ones, does not count: a quarter MiB at most."""

LOOK_SECONDS = 2.0
"""Time between two looks at a connection. What takes none of its answer in all of HEADER_SECONDS is closed too."""

MOST_CONNECTIONS = 800
"""Connections at once, fewer than the files that a process may usually open. One more takes the place of the one that
has waited longest for a request."""

MOST_UNSENT = 256 << 20
"""Bytes of answers that clients have not taken yet, of all connections together."""

LARGE_UNSENT = 1 << 16
"""Bytes that the kernel would not take of an answer, above which it is one of those that count."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol, which knows how long a connection may idle between requests, but not within one's headers.

    A look at it every two seconds ends what has not moved for :data:`HEADER_SECONDS`. The parser, llhttp, neither
    limits the size of headers nor asks for a host, and stops at a request to change the protocol: this class does the
    first two, and closes the connection after the third.
    """

    cycle: RequestResponseCycle | None  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= MOST_CONNECTIONS:
            self._drop_oldest()
        super().connection_made(transport)
        self._moved, self._unsent, self._header_bytes = self.loop.time(), 0, 0
        self._look = self.loop.call_later(LOOK_SECONDS, self._look_again)

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > MOST_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response(f"Headers of more than {MOST_HEADER_BYTES} bytes are not read; send fewer.")

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() != "1.0"):
            raise ValueError("a request names one host (RFC 9112, section 3.2)")  # the answer is 400
        super().on_headers_complete()
        self.headers = []  # what follows a body in chunks is no header of the request
        if self.parser.should_upgrade() and self.cycle is not None:
            self.cycle.keep_alive = False  # what follows would be taken for the other protocol

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._moved, self._unsent = self.loop.time(), self.unsent
        super().on_response_complete()
        if self._unsent > LARGE_UNSENT and self._unsent_of_all() > MOST_UNSENT:
            self.transport.abort()

    @property
    def unsent(self) -> int:
        """Bytes of its answers that the client has not taken."""
        return self.transport.get_write_buffer_size()

    @property
    def awaits_request(self) -> bool:
        """Whether no request is being answered. One that is has a limit of its own."""
        return self.cycle is None or self.cycle.response_complete

    def _look_again(self) -> None:
        now, unsent = self.loop.time(), self.unsent
        if unsent < self._unsent or not (self.awaits_request or self.transport.is_closing()):
            self._moved = now
        self._unsent = unsent
        if now - self._moved >= HEADER_SECONDS:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(LOOK_SECONDS, self._look_again)

    def _drop_oldest(self) -> None:
        waiting = [each for each in self._others() if each.awaits_request and not each.transport.is_closing()]
        if waiting:
            min(waiting, key=lambda each: each._moved).transport.abort()

    def _unsent_of_all(self) -> int:
        return sum(each.unsent for each in self._others())

    def _others(self) -> list[BoundedConnection]:
        return [each for each in self.connections if isinstance(each, BoundedConnection)]

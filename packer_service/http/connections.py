"""Connections that cannot be held open by doing nothing: by headers that never end, or an answer that nobody takes."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEADER_SECONDS = 10.0
"""Longest time in which a request's line and headers arrive, from the moment at which the connection is free for it."""

LOOK_SECONDS = 2.0
"""Time between two looks at a connection. What takes none of its answer in all of HEADER_SECONDS is closed too."""

MOST_CONNECTIONS = 800
"""Connections at once, fewer than the files that a process may usually open. One more takes the place of the one that
has waited longest for a request."""

MOST_UNSENT = 256 << 20
"""Bytes of answers that clients have not taken yet, of all connections together."""

LARGE_UNSENT = 1 << 16
"""Bytes that the kernel would not take of an answer, above which it is one of those that count."""


class BoundedConnection(H11Protocol):
    """uvicorn's protocol, which knows how long a connection may idle between requests, but not within one's headers.

    A look at it every two seconds ends what has not moved for :data:`HEADER_SECONDS`.
    """

    cycle: RequestResponseCycle | None  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= MOST_CONNECTIONS:
            self._drop_oldest()
        super().connection_made(transport)
        self._moved, self._unsent = self.loop.time(), 0
        self._look = self.loop.call_later(LOOK_SECONDS, self._look_again)

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

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

"""Guards that every request must pass: limits of size and time, the token, and headers of its answer. Plain ASGI."""

from __future__ import annotations

import asyncio
import hmac
from typing import NoReturn

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from preshard.packer_service.http.problems import ProblemError, busy, problem_response, too_slow
from preshard.packer_service.http.settings import ServiceSettings

PLAN_PATH = "/v1/plan"

MAX_BODY_BYTES, MAX_BODIES_BYTES = 16 << 20, 64 << 20
"""Most bytes of a request's body, and of all that are read or answered at once."""

SLACK_SECONDS = 2.0
"""Time beyond the limit of a request in which the reason for its end still reaches the client."""

_OPEN = ("/", "/healthz", "/docs", "/openapi.json")
"""Paths that need no token: they reveal nothing about any dataset, and browsers request them without one."""

_HEADERS = {
    # Plotly sets styles on elements; everything else comes from files of the service
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Headers:
    """Adds the headers that make browsers careful to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                # a copy, since the answer and its headers may be kept and sent again
                message = {**message, "headers": [*message["headers"], *self.headers]}
            await send(message)

        await self.app(scope, receive, add if scope["type"] == "http" else send)


class Head:
    """Answers HEAD like GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        scope["method"] = "GET"
        await self.app(scope, receive, without_body)


class Gate:
    """Admits the requests that the settings admit, by the host that they name and by their token."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self.app = app
        self.hosts = {host.lower() for host in settings.hosts}
        self.token = settings.token.get_secret_value().encode() if settings.token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else None
        if problem is not None:
            await problem_response(scope, problem)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _problem(self, scope: Scope) -> ProblemError | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
        if self.hosts and name not in self.hosts:
            detail = f"This service does not answer for the host {name!r:.100}; ask it as localhost."
            return ProblemError(421, "misdirected-request", "Misdirected request", detail)
        path = scope["path"]
        if self.token is None or path in _OPEN or path.startswith("/static/"):
            return None
        scheme, _, sent = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(sent.strip(), self.token):
            return None
        detail = "Send the service's token in the header `Authorization: Bearer TOKEN`."
        return ProblemError(401, "unauthorized", "Token missing or wrong", detail, {"WWW-Authenticate": "Bearer"})


class Bounds:
    """Ends requests whose body is too large or that take too long.

    The processes that read have the whole time to answer, and what they say about it should arrive.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self.app = app
        self.settings = settings
        self.held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self)
        seconds = self.settings.request_seconds + (self.settings.plan_seconds if scope["path"] == PLAN_PATH else 0)
        try:
            exchange.check_declared()
            async with asyncio.timeout(seconds + SLACK_SECONDS):
                await self.app(scope, exchange.receive, exchange.send)
        except _RefusedError:
            pass
        except TimeoutError:
            exchange.problem = too_slow(seconds)
        finally:
            exchange.let_go()
        if exchange.problem is not None and not exchange.started:
            await problem_response(scope, exchange.problem)(scope, receive, send)


class _Exchange:
    """A request and its answer. Once there is a problem, no other answer is sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, bounds: Bounds) -> None:
        self._scope, self._receive, self._send, self._bounds = scope, receive, send, bounds
        self._size = 0
        self.started = False
        self.problem: ProblemError | None = None

    def check_declared(self) -> None:
        declared = dict(self._scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
            self._refuse_large()

    async def receive(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self._size += size
        self._bounds.held_bytes += size
        if self._size > MAX_BODY_BYTES:
            self._refuse_large()
        if self._bounds.held_bytes > MAX_BODIES_BYTES:
            self._refuse(busy("The bodies of other requests take all the memory that there is for bodies.", 5))
        return message

    def let_go(self) -> None:
        """The request is over, and its body with it."""
        self._bounds.held_bytes -= self._size
        self._size = 0

    async def send(self, message: Message) -> None:
        if self.problem is None:
            self.started = True
            await self._send(message)

    def _refuse_large(self) -> NoReturn:
        detail = f"The body has more than {MAX_BODY_BYTES} bytes, the most that the service reads."
        self._refuse(ProblemError(413, "too-large", "Request too large", detail, {"Connection": "close"}))

    def _refuse(self, problem: ProblemError) -> NoReturn:
        # the framework may take the exception for a malformed body and answer with that: the problem is sent instead
        self.problem = problem
        raise _RefusedError


class _RefusedError(Exception):
    """The service reads no more of a body."""

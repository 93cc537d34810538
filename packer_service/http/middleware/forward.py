"""Questions about datasets go to processes that may hang or end; answers are kept here until the dataset changes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from cachetools import LRUCache
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from preshard.packer_service.http.dataset.cache import Cache
from preshard.packer_service.http.middleware.compress import accepts_gzip
from preshard.packer_service.http.middleware.guards import PLAN_PATH
from preshard.packer_service.http.pool.frames import Frame
from preshard.packer_service.http.pool.listing import Known, Listing
from preshard.packer_service.http.pool.pool import Pool
from preshard.packer_service.http.problems import ProblemError, busy, damaged, no_dataset, problem_response, unfinished
from preshard.packer_service.http.service import LARGEST_KEPT_ANSWER, is_known
from preshard.packer_service.http.settings import ServiceSettings

LISTING_PATH = "/v1/datasets"
OF_DATASET = "/v1/datasets/{name}"

MOST_MATCHED, LONGEST_MATCHED = 4096, 256
"""Paths whose routes are kept, and characters of the longest."""

PLAN_URGENT_SECONDS = 10.0
"""Time in which a plan stands beside answers for a processor, of which it takes a second or two. Behind them it might
not end in its time on a busy machine."""

TURN_SECONDS = 1.0
"""Time in which a plan whose client has gone makes room for the next one, before that is refused."""

_SHELL_BYTES = 500
"""What a kept answer takes besides its body."""

_FORWARDED = (b"content-type", b"accept", b"accept-encoding", b"host")
"""Headers that an answer may depend on. The token is not among them: no process that reads needs it."""


def is_of_datasets(route: BaseRoute) -> bool:
    """Whether answering a route means reading datasets."""
    path = getattr(route, "path", "")
    return path.startswith("/v1/") and path != LISTING_PATH


class Reply(NamedTuple):
    """An answer, whole."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, wanted: bytes) -> str:
        return next((value.decode("latin-1") for name, value in self.headers if name == wanted), "")


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class Forward:
    """Answers what needs a dataset, and leaves everything else to the application.

    Args:
        app: the application.
        settings: the limits.
        routes: the routes that read datasets.
        pool: the processes that answer them.
        listing: the datasets that there are.
        cache: what answers are kept in.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServiceSettings,
        routes: Sequence[BaseRoute],
        pool: Pool,
        listing: Listing,
        cache: Cache,
    ) -> None:
        self.app = app
        self.settings = settings
        self.routes = routes
        self.pool = pool
        self.listing = listing
        self.cache = cache
        self._matched: LRUCache[tuple[str, str], tuple[Any, dict[str, Any]]] = LRUCache(MOST_MATCHED)
        self._asked: dict[tuple[str, ...], asyncio.Task[Reply]] = {}
        self._planning = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        if scope["path"] == LISTING_PATH:
            await self.listing.fresh(None)
        found = self._match(scope)
        if found is None:
            await self.app(scope, receive, send)
            return
        scope["route"], parameters = found
        try:
            name = parameters.get("name") if scope["route"].path.startswith(OF_DATASET) else None
            reply = await (self._other(scope, receive) if name is None else self._of_dataset(scope, name))
        except ProblemError as problem:
            await problem_response(scope, problem)(scope, receive, send)
            return
        except ClientGoneError:
            return
        await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        await send({"type": "http.response.body", "body": reply.body})

    def _match(self, scope: Scope) -> tuple[Any, dict[str, Any]] | None:
        """The route of a request and the parameters in its path. Those found last are kept: looking takes a while."""
        key = (scope["method"], scope["path"])
        found = self._matched.get(key)
        if found is None and (found := self._looked_for(scope)) is not None and len(scope["path"]) <= LONGEST_MATCHED:
            self._matched[key] = found
        return found

    def _looked_for(self, scope: Scope) -> tuple[Any, dict[str, Any]] | None:
        for route in self.routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                return route, child["path_params"]
        return None

    async def _of_dataset(self, scope: Scope, name: str) -> Reply:
        await self.listing.fresh(name)
        known = self.listing.find(name)
        if known is None and not self.listing.has_looked:
            raise busy("The service still looks through the root for the first time.", 5)
        if known is None:
            raise no_dataset(name)
        if known.entry.state == "unfinished":
            raise unfinished(name, str(known.entry.reason))
        if known.entry.state == "damaged" or not known.tag:
            raise damaged(name, str(known.entry.reason))
        reply = await self._kept_or_asked(scope, known)
        headers = dict(scope["headers"])
        if reply.status == 200 and is_known(headers.get(b"if-none-match", b"").decode("latin-1"), known.tag):
            return Reply(304, [pair for pair in reply.headers if pair[0] in (b"etag", b"cache-control", b"vary")], b"")
        return reply

    async def _kept_or_asked(self, scope: Scope, known: Known) -> Reply:
        """What many ask for at once is asked once."""
        question = (known.tag, _raw_path(scope), scope["query_string"].decode("latin-1"), _encoding(scope))
        kept: Reply | None = self.cache.peek(("reply", *question))
        if kept is not None:
            return kept
        asked = self._asked.get(question)
        if asked is None:
            asked = self._asked[question] = asyncio.ensure_future(self._ask(scope, known))
            asked.add_done_callback(lambda task: self._done(question, known.tag, task))
        # whoever goes away leaves the question to the others, and the pool bounds its time
        return await asyncio.shield(asked)

    def _done(self, question: tuple[str, ...], tag: str, task: asyncio.Task[Reply]) -> None:
        self._asked.pop(question, None)
        if task.cancelled() or task.exception() is not None:
            return
        reply = task.result()
        is_of_tag = reply.header(b"etag").removeprefix("W/").strip('"') == tag
        if reply.status == 200 and is_of_tag and len(reply.body) <= LARGEST_KEPT_ANSWER:
            self.cache.put(("reply", *question), reply, len(reply.body) + _SHELL_BYTES)

    async def _ask(self, scope: Scope, known: Known) -> Reply:
        return _reply_of(
            await self.pool.ask(
                (known.name, known.tag),
                known.name,
                {known.name: known.path},
                {"scope": _head_of(scope)},
                seconds=self.settings.request_seconds,
            )
        )

    async def _other(self, scope: Scope, receive: Receive) -> Reply:
        """What names its datasets in its query or body has a process of its own, and that for one question.

        The process ends when the client goes away: nobody else gets its answer.
        """
        body = await _body_of(receive)
        await self.listing.fresh("")
        if scope["path"] != PLAN_PATH:
            answering = self._in_own_process(scope, body, self.settings.request_seconds)
            return await _while_connected(receive, answering)
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._planning.acquire()
        except TimeoutError:
            raise busy("Another plan is being made, and only one is made at a time.", 5) from None
        try:
            seconds = self.settings.request_seconds + self.settings.plan_seconds
            answering = self._in_own_process(scope, body, seconds, urgent_seconds=PLAN_URGENT_SECONDS)
            return await _while_connected(receive, answering)
        finally:
            self._planning.release()

    async def _in_own_process(self, scope: Scope, body: bytes, seconds: float, **others: float) -> Reply:
        head = {"scope": _head_of(scope)}
        key = (scope["request_id"],)
        places = self.listing.places()
        frame = await self.pool.ask(key, scope["path"], places, head, body, seconds=seconds, keep=False, **others)
        return _reply_of(frame)


def _raw_path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return unquote(raw.decode("latin-1"), encoding="latin-1")


def _encoding(scope: Scope) -> str:
    """How the answer may be written, as one of the few words that make a difference."""
    return "gzip" if accepts_gzip(scope) else "identity"


def _head_of(scope: Scope) -> dict[str, Any]:
    headers = [(name, value) for name, value in scope["headers"] if name in _FORWARDED]
    return {
        "method": scope["method"],
        "path": scope["path"],
        "raw_path": (scope.get("raw_path") or scope["path"].encode()).decode("latin-1"),
        "query": scope["query_string"].decode("latin-1"),
        "headers": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
        "request_id": scope["request_id"],
    }


def _reply_of(frame: Frame) -> Reply:
    headers = [(str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in frame.head["headers"]]
    return Reply(int(frame.head["status"]), headers, frame.body)


async def _while_connected(receive: Receive, answering: Coroutine[Any, Any, Reply]) -> Reply:
    """An answer, given up when the client goes away.

    Raises:
        ClientGoneError: it has.
    """
    answer, gone = asyncio.ensure_future(answering), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientGoneError
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body_of(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)

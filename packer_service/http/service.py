"""The state of an application, and the route class whose functions are called where their dataset is read."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import Path, Request, Response
from fastapi.routing import APIRoute

from preshard.packer_service.http.dataset.cache import Cache
from preshard.packer_service.http.listing import Known, Listing
from preshard.packer_service.http.middleware.compress import accepts_gzip
from preshard.packer_service.http.pool import Pool, Reply, require_answer
from preshard.packer_service.http.problems import busy
from preshard.packer_service.http.settings import ServiceSettings
from preshard.packer_service.http.worker import DatasetPlace, WorkerQuestion, answer

LARGEST_KEPT_ANSWER = 4 << 20
"""Bytes up to which an answer is kept as it was sent, so that a few huge ones do not push out everything else."""

ANSWERS_SHARE = 4
"""Part of the kept bytes, one over this, that are answers as they were sent; the processes share the rest."""

_SHELL_BYTES = 500
"""Bytes of a kept answer besides its body."""

CLIENT_GONE = 499
"""Status in the log of a request whose client went away."""

DatasetName = Annotated[
    str, Path(description="A dataset's name, from /v1/datasets.", max_length=4096, examples=["demo"])
]


class ServiceState:
    """The parts of one application that requests share."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.cache = Cache(settings.cache_bytes // ANSWERS_SHARE)
        self.pool = Pool()
        self.listing = Listing(settings, self.pool)
        self.planning = asyncio.Lock()
        self._asked: dict[tuple[str, ...], asyncio.Task[Reply]] = {}

    def close(self) -> None:
        """Ends every process."""
        self.listing.close()
        self.pool.close()

    def cache_figures(self) -> tuple[int, int, int, int]:
        """Bytes, entries, hits and misses of what is kept, here and in the processes that read."""
        own = (self.cache.bytes, len(self.cache), self.cache.hits, self.cache.misses)
        bytes_, entries, hits, misses = (a + b for a, b in zip(own, self.pool.cache_figures(), strict=True))
        return bytes_, entries, hits, misses

    async def ask(
        self, key: tuple[str, ...], known: Known, function: Callable[..., Any], parameters: dict[str, Any], gzip: bool
    ) -> Reply:
        """The answer of a dataset's process. What many ask for at once is asked once."""
        asked = self._asked.get(key)
        if asked is None:
            asking = self._ask(known, function, parameters, gzip)
            asked = self._asked[key] = asyncio.ensure_future(asking)
            asked.add_done_callback(lambda task: self._forget(key, task))
        # whoever goes away leaves the question to the others, and the pool bounds its time
        return await asyncio.shield(asked)

    def _forget(self, key: tuple[str, ...], task: asyncio.Task[Reply]) -> None:
        self._asked.pop(key, None)
        if not task.cancelled():
            task.exception()  # asyncio reports one that nobody has asked for, as where all clients have gone

    async def _ask(self, known: Known, function: Callable[..., Any], parameters: dict[str, Any], gzip: bool) -> Reply:
        for _ in range(2):
            question = self.question(known, function, parameters, gzip=gzip)
            key, seconds = (known.name, known.tag), self.settings.request_seconds
            reply = await self.pool.ask(key, known.name, answer, question, seconds=seconds)
            self.listing.note(known, reply.head.get("broken"))
            if not reply.head.get("changed"):
                reply.head["tag"] = known.tag
                return require_answer(reply)
            known = await self.listing.find(known.name, at_once=True)
        raise busy(f"{known.name}: its files change while they are read; try again later.", 5)

    async def ask_alone(
        self,
        request: Request,
        name: str | None,
        function: Callable[..., Any],
        parameters: dict[str, Any],
        seconds: float,
        urgent_seconds: float = 1.0,
    ) -> Response:
        """The answer of a process of its own, which ends when the client goes away: nobody else gets its answer.

        Raises:
            ProblemError: there is no such dataset, or no answer in this time.
        """
        known = await self.listing.find(name) if name is not None else None
        question = self.question(known, function, parameters, gzip=accepts_gzip(request.scope))
        what = name if name is not None else request.url.path
        key = (request.scope["request_id"],)
        asking = self.pool.ask(key, what, answer, question, seconds=seconds, keep=False, urgent_seconds=urgent_seconds)
        reply, gone = asyncio.ensure_future(asking), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({reply, gone}, return_when=asyncio.FIRST_COMPLETED)
            return _response(require_answer(reply.result())) if reply.done() else Response(status_code=CLIENT_GONE)
        finally:
            reply.cancel()
            gone.cancel()
            await asyncio.gather(reply, gone, return_exceptions=True)

    def question(
        self, known: Known | None, function: Callable[..., Any], parameters: dict[str, Any], *, gzip: bool
    ) -> WorkerQuestion:
        place = None if known is None else DatasetPlace(self.settings.root, known.path, known.name, known.tag)
        cache_bytes = self.settings.cache_bytes * (ANSWERS_SHARE - 1) // ANSWERS_SHARE // max(self.pool.n_readers, 1)
        return WorkerQuestion(
            place=place,
            function=function,
            parameters=parameters,
            tokenizers=self.settings.tokenizers,
            cache_bytes=cache_bytes,
            compresses=gzip,
        )


def service_of(request: Request) -> ServiceState:
    service: ServiceState = request.app.state.service
    return service


class DatasetRoute(APIRoute):
    """A function of a dataset: its other parameters are checked here, and it is called where the dataset is read.

    Answers carry the dataset's tag as ETag, and are kept until its files change. A client that already has the answer
    gets 304. Only successes are kept, each under the path and query that asked for it.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **others: Any) -> None:
        super().__init__(path, endpoint if hasattr(endpoint, "asks") else _asking(endpoint), **others)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle_asked = super().get_route_handler()

        async def handle(request: Request) -> Response:
            service = service_of(request)
            known = await service.listing.find(request.path_params["name"])
            gzip = accepts_gzip(request.scope)
            key = (known.tag, _raw_path(request), request.url.query, "gzip" if gzip else "identity")
            request.state.asks = (key, known, gzip)
            response: Response | None = service.cache.peek(key)
            if response is None:
                response = await handle_asked(request)
                if response.status_code != 200:
                    return response
                if response.headers["etag"] == _etag(known.tag) and len(response.body) <= LARGEST_KEPT_ANSWER:
                    service.cache.put(key, response, len(response.body) + _SHELL_BYTES)
            if is_known(request.headers.get("if-none-match", ""), response.headers["etag"]):
                sent = ("etag", "cache-control", "vary")
                headers = {name: response.headers[name] for name in sent if name in response.headers}
                return Response(status_code=304, headers=headers)
            return response

        return handle


def _asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """An endpoint that takes a function's parameters and has the dataset's process call it."""
    signature = inspect.signature(function, eval_str=True)

    async def ask(request: Request, **parameters: Any) -> Response:
        key, known, gzip = request.state.asks
        parameters.pop("name")
        reply = await service_of(request).ask(key, known, function, parameters, gzip)
        response = _response(reply)
        response.headers["ETag"] = _etag(reply.head["tag"])  # a weak one: the same answer may be compressed
        response.headers["Cache-Control"] = "private, no-cache"
        return response

    def given(name: str, annotation: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)

    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in signature.parameters.items()
        if name != "dataset"
    ]
    parameters = [given("request", Request), given("name", DatasetName), *own]
    ask.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    ask.__name__, ask.__doc__ = function.__name__, function.__doc__
    ask.asks = function  # type: ignore[attr-defined]
    return ask


def _response(reply: Reply) -> Response:
    return Response(reply.body, headers=reply.head["headers"])


def _etag(tag: str) -> str:
    return f'W/"{tag}"'


def is_known(if_none_match: str, etag: str) -> bool:
    """Whether a client already has the answer; the comparison is the weak one (RFC 9110, section 13.1.2)."""
    known = [part.strip().removeprefix("W/").strip('"') for part in if_none_match.split(",")]
    return "*" in known or etag.removeprefix("W/").strip('"') in known


def _raw_path(request: Request) -> str:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    return unquote(raw.decode("latin-1"), encoding="latin-1")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

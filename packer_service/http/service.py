"""What an application holds, and the route class that keeps answers about a dataset until the dataset changes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from preshard.packer_service.http.dataset.cache import Cache, size_of
from preshard.packer_service.http.dataset.catalog import Catalog
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.dataset.shelf import Shelf
from preshard.packer_service.http.planner import Planner
from preshard.packer_service.http.pool.listing import Listing
from preshard.packer_service.http.settings import ServiceSettings

LARGEST_KEPT_ANSWER = 4 << 20
"""Bytes up to which an answer is kept as it was sent, so that a few huge ones do not push out everything else."""


class ServiceState:
    """The parts of one application that requests share.

    Args:
        settings: what is served, within which limits.
        shelf: what knows the datasets; by default a catalog that looks through the root itself.
        keeps_answers: whether answers about datasets are kept here.
    """

    def __init__(
        self, settings: ServiceSettings, shelf: Shelf | Listing | None = None, *, keeps_answers: bool = True
    ) -> None:
        self.settings = settings
        self.cache = Cache(settings.cache_bytes)
        self.catalog: Catalog | Shelf | Listing = Catalog(settings, self.cache) if shelf is None else shelf
        self.planner = Planner(settings, is_bounded=not keeps_answers)
        self.keeps_answers = keeps_answers

    def cache_figures(self) -> tuple[int, int, int, int]:
        """Bytes, entries, hits and misses of what is kept, here and in the processes that read."""
        cache = self.cache
        own = (cache.bytes, len(cache), cache.hits, cache.misses)
        if not isinstance(self.catalog, Listing):
            return own
        others = self.catalog.pool.cache_figures()
        return own[0] + others[0], own[1] + others[1], own[2] + others[2], own[3] + others[3]


def service_of(request: Request) -> ServiceState:
    service: ServiceState = request.app.state.service
    return service


class DatasetRoute(APIRoute):
    """Answers about a dataset carry its tag as ETag, and are kept until its files change.

    A client that already has the answer gets 304. Only successes are kept, each under the path and query that asked
    for it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            service = service_of(request)
            if service.catalog.is_due():
                await run_in_threadpool(service.catalog.look)
            dataset = service.catalog.snapshot().get(request.path_params["name"])
            if not isinstance(dataset, Dataset) or dataset.broken is not None:
                return await answer(request)
            key = (dataset.tag, "answer", request.url.path, request.url.query)
            kept: Response | None = service.cache.peek(key)
            if kept is None:
                kept = await answer(request)
                if kept.status_code != 200:
                    return kept
                kept.headers["ETag"] = f'W/"{dataset.tag}"'  # the same answer may be compressed
                kept.headers["Cache-Control"] = "private, no-cache"
                if service.keeps_answers and len(kept.body) <= LARGEST_KEPT_ANSWER:
                    service.cache.put(key, kept, size_of((key, kept.body, kept.raw_headers)))
            if is_known(request.headers.get("if-none-match", ""), dataset.tag):
                headers = {name: kept.headers[name] for name in ("etag", "cache-control")}
                return Response(status_code=304, headers=headers)
            return kept

        return handle


def is_known(if_none_match: str, tag: str) -> bool:
    """Whether a client already has the answer; the comparison is the weak one (RFC 9110, section 13.1.2)."""
    known = [part.strip().removeprefix("W/").strip('"') for part in if_none_match.split(",")]
    return "*" in known or tag in known

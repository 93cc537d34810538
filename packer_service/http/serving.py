"""What routers need: the dataset that a path names, a part of a list, and answers kept until a dataset changes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from packer_service.http.dataset.cache import Cache
from packer_service.http.dataset.catalog import Catalog
from packer_service.http.dataset.dataset import Dataset
from packer_service.http.problems import not_legal
from packer_service.http.settings import ServiceSettings

_LARGEST_ANSWER = 4 << 20
"""Bytes up to which an answer is kept as it was sent."""

DatasetName = Annotated[
    str, Path(description="A dataset's name, from /v1/datasets.", max_length=4096, examples=["demo"])
]


class Service:
    """What an application holds."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.cache = Cache(settings.cache_bytes)
        self.catalog = Catalog(settings, self.cache)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _dataset(name: DatasetName, request: Request) -> Dataset:
    return service_of(request).catalog.dataset(name)


Served = Annotated[Dataset, Depends(_dataset)]


class DatasetRoute(APIRoute):
    """Answers about a dataset carry its tag as ETag, and are kept until its files change.

    A client that has the answer already gets 304. Only successes are kept: an answer to a question is kept with the
    path and query that asked it.
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
                kept.headers["ETag"] = f'"{dataset.tag}"'
                kept.headers["Cache-Control"] = "private, no-cache"
                if len(kept.body) <= _LARGEST_ANSWER:
                    service.cache.put(key, kept, len(kept.body) + 1000)
            if _is_known(request.headers.get("if-none-match", ""), dataset.tag):
                headers = {name: kept.headers[name] for name in ("etag", "cache-control")}
                return Response(status_code=304, headers=headers)
            return kept

        return handle


def _is_known(if_none_match: str, tag: str) -> bool:
    """Whether a client has the answer already; the comparison is the weak one (RFC 9110, section 13.1.2)."""
    known = [part.strip().removeprefix("W/").strip('"') for part in if_none_match.split(",")]
    return "*" in known or tag in known


class Part:
    """The part of a list that a request asks for."""

    def __init__(
        self,
        request: Request,
        response: Response,
        offset: Annotated[int, Query(ge=0, lt=2**63, description="Items to leave out at the start.")] = 0,
        limit: Annotated[int, Query(ge=1, description="Most items of the answer.")] = 50,
    ) -> None:
        most = service_of(request).settings.max_limit
        if limit > most:
            raise not_legal(
                f"query.limit: {limit} is more than {most}, the most items of a page; ask for further pages"
            )
        self.offset = offset
        self.limit = limit
        self._request = request
        self._response = response

    @property
    def wanted(self) -> slice:
        """The part's place in the list."""
        return slice(self.offset, self.offset + self.limit)

    def fields(self, total: int) -> dict[str, Any]:
        """The fields of ``PageOf`` but for its items; sets the ``Link`` header (RFC 8288)."""
        after = self.offset + self.limit
        following = self._link(after) if after < total else None
        before = self._link(max(min(self.offset, total) - self.limit, 0)) if self.offset > 0 else None
        links = [f'<{url}>; rel="{rel}"' for rel, url in (("next", following), ("prev", before)) if url]
        if links:
            self._response.headers["Link"] = ", ".join(links)
        return {"total": total, "offset": self.offset, "limit": self.limit, "next": following, "previous": before}

    def _link(self, offset: int) -> str:
        query = [(k, v) for k, v in self._request.query_params.multi_items() if k not in ("offset", "limit")]
        query += [("offset", str(offset)), ("limit", str(self.limit))]
        path = self._request.scope["raw_path"].decode("ascii", "replace")
        return f"{path}?{urlencode(query)}"


Paged = Annotated[Part, Depends()]
Layout = Annotated[str | None, Query(description="Token layout.", examples=["balanced_ring"], max_length=64)]
Ring = Annotated[int | None, Query(description="Ring degree.", examples=[8], ge=1, le=4096)]
Cp = Annotated[int | None, Query(description="CP size, for images.", examples=[8], ge=1, le=4096)]

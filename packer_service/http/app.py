"""The application: its routers, its problems and what stands around every request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio.to_thread
from fastapi import FastAPI

from preshard.packer_service.http.dataset.catalog import require_root
from preshard.packer_service.http.dataset.shelf import Shelf
from preshard.packer_service.http.middleware.compress import Compress
from preshard.packer_service.http.middleware.forward import Forward, is_of_datasets
from preshard.packer_service.http.middleware.guards import Bounds, Gate, Head, Headers
from preshard.packer_service.http.middleware.observer import Metrics, Observer
from preshard.packer_service.http.pool.listing import Listing
from preshard.packer_service.http.pool.pool import ANSWERS_SHARE, Pool
from preshard.packer_service.http.problems import add_handlers
from preshard.packer_service.http.routers import (
    advice,
    balance,
    comparison,
    datasets,
    documents,
    health,
    images,
    layout,
    mask,
    metrics,
    openapi,
    packs,
    page,
    plan,
    reading,
    shards,
    text,
)
from preshard.packer_service.http.service import ServiceState
from preshard.packer_service.http.settings import ServiceSettings
from preshard.schemas.version import VERSION

ROUTERS = (
    health.router,
    datasets.listing,
    datasets.router,
    balance.router,
    advice.router,
    comparison.router,
    shards.router,
    packs.router,
    layout.router,
    mask.router,
    text.router,
    reading.router,
    images.router,
    documents.router,
    plan.router,
    metrics.router,
    openapi.router,
    page.router,
)

SLACK_SECONDS = 2.0
"""Time beyond the limit of a request in which the reason for its end still reaches the client."""


def create_app(settings: ServiceSettings) -> FastAPI:
    """The service over every dataset below ``settings.root``, in this process alone.

    A dataset that hangs a thread hangs it in this process; :func:`create_front` is what ``preshard serve`` runs.

    Raises:
        ConfigError: there is no such folder.
    """
    app = _application(ServiceState(settings), lifespan=_look_first)
    _surround(app, settings)
    return app


def create_inner(settings: ServiceSettings) -> FastAPI:
    """What a process that reads answers with: routes and problems, without what stands around requests.

    It opens nothing: the datasets that it may read are put in its place later.
    """
    app = _application(ServiceState(settings, Shelf.empty(settings), keeps_answers=False), lifespan=None)
    app.add_middleware(Compress)
    return app


def create_front(settings: ServiceSettings) -> FastAPI:
    """The service over every dataset below ``settings.root``; whatever reads a dataset does so in another process.

    Raises:
        ConfigError: there is no such folder.
    """
    require_root(settings.root)
    pool = Pool(settings)
    listing = Listing(settings, pool)
    app = _application(ServiceState(settings, listing), lifespan=_run_processes)
    app.state.pool = pool
    routes = [route for router in ROUTERS for route in router.routes if is_of_datasets(route)]
    cache = app.state.service.cache
    cache.resize(settings.cache_bytes // ANSWERS_SHARE)
    app.add_middleware(Forward, settings=settings, routes=routes, pool=pool, listing=listing, cache=cache)
    # the processes have the whole time to answer, and what they say about it should arrive
    _surround(app, settings, slack_seconds=SLACK_SECONDS)
    return app


def _application(service: ServiceState, lifespan: Any) -> FastAPI:
    app = FastAPI(title="preshard", version=VERSION, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    app.state.metrics = Metrics(service)
    app.openapi = partial(openapi.describe, app)  # type: ignore[method-assign]
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", page.assets)
    return app


def _surround(app: FastAPI, settings: ServiceSettings, slack_seconds: float = 0.0) -> None:
    """What every request passes; it meets the last one first."""
    app.add_middleware(Compress)
    app.add_middleware(Bounds, settings=settings, slack_seconds=slack_seconds)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(Head)
    app.add_middleware(Headers)
    app.add_middleware(Observer, metrics=app.state.metrics)


@asynccontextmanager
async def _look_first(app: FastAPI) -> AsyncIterator[None]:
    service: ServiceState = app.state.service
    anyio.to_thread.current_default_thread_limiter().total_tokens = service.settings.threads
    await anyio.to_thread.run_sync(service.catalog.look)  # so that the first request need not wait for it
    yield


@asynccontextmanager
async def _run_processes(app: FastAPI) -> AsyncIterator[None]:
    pool: Pool = app.state.pool
    listing = app.state.service.catalog
    pool.start()
    try:
        yield
    finally:
        listing.close()
        pool.close()

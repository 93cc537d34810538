"""The application: its routers, its problems and what stands around every request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from preshard.packer_service.http.dataset.catalog import require_root
from preshard.packer_service.http.middleware.compress import Compress
from preshard.packer_service.http.middleware.guards import Bounds, Gate, Head, Headers
from preshard.packer_service.http.middleware.observer import Metrics, Observer
from preshard.packer_service.http.problems import add_handlers
from preshard.packer_service.http.routers import (
    advice,
    balance,
    datasets,
    documents,
    layout,
    packs,
    page,
    plan,
    reading,
)
from preshard.packer_service.http.service import ServiceState
from preshard.packer_service.http.settings import ServiceSettings
from preshard.schemas import VERSION

ROUTERS = (
    datasets.listed,
    datasets.router,
    balance.router,
    advice.router,
    packs.router,
    layout.router,
    reading.router,
    documents.router,
    plan.router,
    page.router,
)


def create_app(settings: ServiceSettings) -> FastAPI:
    """The service over every dataset below ``settings.root``, an ASGI application.

    Whatever reads a dataset does so in another process, which may hang, crash or be ended.

    Raises:
        ConfigError: there is no such folder.
    """
    require_root(settings.root)
    service = ServiceState(settings)
    app = FastAPI(title="preshard", version=VERSION, docs_url=None, redoc_url=None, lifespan=_run_processes)
    app.state.service = service
    metrics = app.state.metrics = Metrics(settings.cache_bytes, service.cache_figures, service.listing.count)
    app.openapi = partial(page.describe, app)  # type: ignore[method-assign]
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", page.assets)
    # a request meets the last one first
    app.add_middleware(Compress)
    app.add_middleware(Bounds, settings=settings)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(Head)
    app.add_middleware(Headers)
    app.add_middleware(Observer, metrics=metrics)
    return app


@asynccontextmanager
async def _run_processes(app: FastAPI) -> AsyncIterator[None]:
    service: ServiceState = app.state.service
    service.pool.start()
    try:
        yield
    finally:
        service.close()

"""The application: its routers, its problems and what stands around every request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread
from fastapi import FastAPI

from packer_service.http.middleware.guards import Bounds, Gate, Head, Headers
from packer_service.http.middleware.observer import Metrics, Observer
from packer_service.http.problems import add_handlers
from packer_service.http.routers import (
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
from packer_service.http.service import ServiceState
from packer_service.http.settings import ServiceSettings
from schemas.version import VERSION

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


def create_app(settings: ServiceSettings) -> FastAPI:
    """The service over every dataset below ``settings.root``.

    Raises:
        ConfigError: there is no such folder.
    """
    app = FastAPI(title="preshard", version=VERSION, docs_url=None, redoc_url=None, lifespan=_lifespan)
    service = app.state.service = ServiceState(settings)
    app.state.metrics = Metrics(service)
    app.openapi = partial(openapi.describe, app)  # type: ignore[method-assign]
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", page.assets)
    # a request meets the last one first
    app.add_middleware(Bounds, settings=settings)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(Head)
    app.add_middleware(Headers)
    app.add_middleware(Observer, metrics=app.state.metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: ServiceState = app.state.service
    anyio.to_thread.current_default_thread_limiter().total_tokens = service.settings.threads
    await anyio.to_thread.run_sync(service.catalog.look)  # so that the first request need not wait for it
    yield

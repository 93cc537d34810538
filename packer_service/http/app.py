"""The application: routers, problems, guards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI

from packer_service.http.problems import add_handlers
from packer_service.http.routers import (
    balance,
    datasets,
    documents,
    health,
    images,
    layout,
    mask,
    packs,
    shards,
    text,
)
from packer_service.http.serving import Service
from packer_service.http.settings import ServiceSettings
from schemas.version import VERSION

ROUTERS = (
    health.router,
    datasets.listing,
    datasets.router,
    balance.router,
    shards.router,
    packs.router,
    layout.router,
    mask.router,
    text.router,
    images.router,
    documents.router,
)


def create_app(settings: ServiceSettings) -> FastAPI:
    """The service over every dataset below ``settings.root``.

    Raises:
        ConfigError: there is no such folder.
    """
    app = FastAPI(title="preshard", version=VERSION, docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.service = Service(settings)
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = app.state.service.settings.threads
    yield

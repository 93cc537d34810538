"""Whether the service is up, and its metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from preshard.packer_service.http.models.datasets import Health
from preshard.schemas.version import VERSION

router = APIRouter(tags=["service"])


@router.get("/healthz", summary="Whether the service is up")
def healthz() -> Health:
    """Answers without reading anything, and needs no token."""
    return Health(version=VERSION)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"description": "Prometheus's text format.", "content": {"text/plain": {}}}},
)
def metrics(request: Request) -> Response:
    """Requests and their times by route, the cache, and datasets by state."""
    return Response(generate_latest(request.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)

"""Whether the service is up, its metrics for Prometheus, and the words for its figures."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from preshard.packer_service.http.models.datasets import Health
from preshard.packer_service.report.figures import FIGURES, Figure
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


@router.get("/v1/figures", summary="Every figure of balance: its name in answers, and what it means")
def figures() -> tuple[Figure, ...]:
    """The same for all datasets, in the order in which answers have them."""
    return FIGURES

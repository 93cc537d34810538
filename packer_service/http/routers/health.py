"""Whether the service is up."""

from __future__ import annotations

from fastapi import APIRouter

from preshard.packer_service.http.models.datasets import Health
from preshard.schemas.version import VERSION

router = APIRouter(tags=["service"])


@router.get("/healthz", summary="Whether the service is up")
def healthz() -> Health:
    """Answers without reading anything, and needs no token."""
    return Health(version=VERSION)

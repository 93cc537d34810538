"""The page: its own files, and Plotly from the installed package. Nothing comes from elsewhere."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from preshard.packer_service import http

STATIC = Path(str(files(http) / "static"))

_REVALIDATE = {"Cache-Control": "no-cache"}


class _Assets(StaticFiles):
    """Files that browsers revalidate each time: modules of two versions must never meet in one page."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_REVALIDATE)
        return response


router = APIRouter(include_in_schema=False)
assets = _Assets(directory=STATIC)


@router.get("/")
def page() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers=_REVALIDATE)


@router.get("/static/plotly.min.js")
def plotly() -> FileResponse:
    path = Path(str(files("plotly") / "package_data" / "plotly.min.js"))
    return FileResponse(path, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

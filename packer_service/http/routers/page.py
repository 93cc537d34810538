"""The page: its own files, and Plotly from the installed package. Nothing comes from elsewhere."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles

from packer_service import http

STATIC = Path(str(files(http) / "static"))

router = APIRouter(include_in_schema=False)
assets = StaticFiles(directory=STATIC)

_REVALIDATE = {"Cache-Control": "no-cache"}


@router.get("/")
def page() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers=_REVALIDATE)


@router.get("/static/plotly.min.js")
def plotly() -> FileResponse:
    path = Path(str(files("plotly") / "package_data" / "plotly.min.js"))
    return FileResponse(path, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

"""Whether the service is up, its metrics and the words for its figures; the page, and the OpenAPI document."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, HTMLResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.staticfiles import StaticFiles

from preshard.packer_service import http
from preshard.packer_service.http.answers.reference import reference_page
from preshard.packer_service.http.middleware.guards import PLAN_PATH
from preshard.packer_service.http.models.datasets import Health, Problem
from preshard.packer_service.http.problems import MEDIA_TYPE
from preshard.packer_service.report.figures import FIGURES, Figure
from preshard.schemas import VERSION

router = APIRouter(tags=["service"])

STATIC = Path(str(files(http) / "static"))

_REVALIDATE = {"Cache-Control": "no-cache"}


class _Assets(StaticFiles):
    """Files that browsers revalidate each time: modules of two versions must never meet in one page."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_REVALIDATE)
        return response


assets = _Assets(directory=STATIC)


@router.get("/", include_in_schema=False)
def page() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers=_REVALIDATE)


@router.get("/static/plotly.min.js", include_in_schema=False)
def plotly() -> FileResponse:
    path = Path(str(files("plotly") / "package_data" / "plotly.min.js"))
    return FileResponse(path, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


ANY = {
    "401": "The token is missing or wrong.",
    "413": "The body is larger than the service reads.",
    "421": "The service does not answer for this host.",
    "422": "A parameter is not legal; the problem says what is.",
    "500": "The service failed; its log has the reason.",
    "503": "The service is busy, or the files cannot be read at the moment.",
    "504": "The answer took too long.",
}
OF_DATASET = {
    "304": "The client already has this answer.",
    "404": "There is no such dataset, or nothing in it has this name.",
    "409": "The dataset is unfinished or damaged; the problem says how.",
}
OF_KEYS = {key: OF_DATASET[key] for key in ("404", "409")}
OF_PLAN = OF_KEYS | {"400": "The body cannot be read as JSON."}


def describe(app: FastAPI) -> dict[str, Any]:
    """The document of an application; it is made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=_DESCRIPTION, routes=app.routes, openapi_version="3.1.0"
        )
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemes = {"token": {"type": "http", "scheme": "bearer", "description": "Needed if the service asks for one."}}
        document["components"]["securitySchemes"] = schemes
        for path, operations in document["paths"].items():
            for operation in operations.values():
                _complete(path, operation)
        app.openapi_schema = document
    return app.openapi_schema


_DESCRIPTION = "Read-only: datasets packed by preshard, how full and how balanced they are, and what was lost."


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Adds the problems, and the headers of answers about a dataset."""
    if path == "/healthz":
        operation["responses"].pop("422", None)
        problems = {key: ANY[key] for key in ("421", "500", "504")}
    else:
        operation["security"] = [{}, {"token": []}]
        of_path = {PLAN_PATH: OF_PLAN, f"{PLAN_PATH}/keys": OF_KEYS}
        problems = ANY | of_path.get(path, OF_DATASET if "{name}" in path else {})
    for status, text in problems.items():
        content = {} if status == "304" else {"content": {MEDIA_TYPE: {"schema": {"$ref": _PROBLEM}}}}
        operation["responses"][status] = {"description": text, **content}
    if "{name}" in path:
        tag = {"description": "Changes whenever the answer can.", "schema": {"type": "string"}}
        operation["responses"]["200"].setdefault("headers", {})["ETag"] = tag


_PROBLEM = "#/components/schemas/Problem"


@router.get("/docs", include_in_schema=False)
def docs(request: Request) -> HTMLResponse:
    """Every path with its parameters and answers, loading nothing from elsewhere; /openapi.json is for programs."""
    index = (STATIC / "index.html").read_text(encoding="utf-8")
    return HTMLResponse(reference_page(describe(request.app), index))


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

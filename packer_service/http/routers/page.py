"""Whether the service is up, its metrics and the words for its figures; the page, and the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, HTMLResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.staticfiles import StaticFiles

from preshard.packer_service import http
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
    document = describe(request.app)
    schemas = document["components"]["schemas"]
    parts = [
        _operation(path, method, operation, schemas)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    names = sorted(name for name, schema in schemas.items() if "properties" in schema)
    return HTMLResponse(
        _PAGE.format(
            version=escape(document["info"]["version"]),
            header=_header(),
            operations="\n".join(parts),
            schemas="\n".join(_schema(name, schemas[name]) for name in names),
        )
    )


def _header() -> str:
    """That of the page, whose views are addressed from here."""
    [header] = re.findall(r"<header.*?</header>", (STATIC / "index.html").read_text(encoding="utf-8"), re.DOTALL)
    return str(header).replace('href="#/', 'href="/#/').replace('href="/docs"', 'href="/docs" aria-current="page"')


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    rows = [
        (f"<code>{escape(one['name'])}</code>", one["in"], _kind(one["schema"]), escape(one.get("description", "")))
        for one in operation.get("parameters", ())
    ]
    answers = "".join(
        f"<li>{status}: {_answer(answer)}</li>" for status, answer in sorted(operation["responses"].items())
    )
    content = operation["responses"]["200"].get("content", {}).get("application/json")
    example = _details("Example", _json(_example(content["schema"], schemas))) if content else ""
    return (
        f'<section class="card"><h2><code>{method.upper()} {escape(path)}</code></h2>'
        f"<p><strong>{escape(operation['summary'])}.</strong> {escape(operation.get('description', ''))}</p>"
        f"{_table(('parameter', 'in', 'value', 'means'), rows)}"
        f"{_details('Answers', f'<ul>{answers}</ul>')}{example}</section>"
    )


def _answer(answer: dict[str, Any]) -> str:
    kinds = [_kind(content["schema"]) for content in answer.get("content", {}).values() if content.get("schema")]
    return f"{escape(answer['description'])} {', '.join(kinds)}".strip()


def _schema(name: str, schema: dict[str, Any]) -> str:
    rows = [
        (f"<code>{escape(key)}</code>", _kind(value), escape(value.get("description", "")))
        for key, value in schema["properties"].items()
    ]
    return (
        f'<section class="card" id="{escape(name)}"><h3>{escape(name)}</h3>'
        f"<p>{escape(schema.get('description', ''))}</p>{_table(('field', 'value', 'means'), rows)}</section>"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{text}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>{content}</details>"


def _json(value: object) -> str:
    return f'<pre class="tokens mono" tabindex="0">{escape(json.dumps(value, indent=1))}</pre>'


def _kind(schema: dict[str, Any]) -> str:
    """What a value is, in words; a schema by its name, as a link."""
    if reference := schema.get("$ref"):
        name = escape(reference.rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(map(_kind, options))
    if choices := schema.get("enum"):
        return escape(", ".join(map(str, choices)))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_kind(schema['items'])}" if "items" in schema else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {_kind(schema['additionalProperties'])}"
    return escape(str(schema.get("const", kind or "anything")))


_USUAL: dict[str | None, object] = {"string": "...", "integer": 1, "number": 0.5, "boolean": True, "null": None}


def _example(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    """A value as the schema describes it: its own example where it has one."""
    if examples := schema.get("examples"):
        return examples[0]
    if reference := schema.get("$ref"):
        return _example(schemas[reference.rpartition("/")[2]], schemas, depth)
    for known in ("const", "default"):
        if known in schema:
            return schema[known]
    if options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return _example(options[0], schemas, depth)
    if choices := schema.get("enum"):
        return choices[0]
    if depth >= _DEEPEST:
        return "..."
    if properties := schema.get("properties"):
        return {key: _example(value, schemas, depth + 1) for key, value in properties.items()}
    if schema.get("type") == "array":
        return [_example(schema["items"], schemas, depth + 1)] if "items" in schema else []
    if schema.get("type") == "object":
        inside = schema.get("additionalProperties")
        return {"...": _example(inside, schemas, depth + 1)} if isinstance(inside, dict) else {}
    return _USUAL.get(schema.get("type"))


_DEEPEST = 5
"""Levels of an example; some schemas hold others without end."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<title>API · preshard</title><link rel="stylesheet" href="/static/page.css"></head>
<body>{header}<main class="view"><h1>REST interface, version {version}</h1>
<p>For programs: <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1). Examples are made from the schemas.</p>
{operations}
<h2>Schemas of answers</h2>
{schemas}
</main></body></html>
"""


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

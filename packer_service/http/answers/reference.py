"""The page of the REST interface: paths, parameters and answers of an OpenAPI document, with examples."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any


def reference_page(document: dict[str, Any], index: str) -> str:
    """A page that loads nothing from elsewhere.

    Args:
        document: OpenAPI's.
        index: HTML of the inspection page, whose header this page has, too.
    """
    schemas = document["components"]["schemas"]
    parts = [
        _operation(path, method, operation, schemas)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    [header] = re.findall(r"<header.*?</header>", index, re.DOTALL)
    header = header.replace('href="#/', 'href="/#/').replace('href="/docs"', 'href="/docs" aria-current="page"')
    names = sorted(name for name, schema in schemas.items() if "properties" in schema)
    return _PAGE.format(
        version=escape(document["info"]["version"]),
        header=header,
        operations="\n".join(parts),
        schemas="\n".join(_schema(name, schemas[name]) for name in names),
    )


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    rows = [
        (f"<code>{escape(one['name'])}</code>", one["in"], _kind(one["schema"]), _text(one.get("description", "")))
        for one in operation.get("parameters", ())
    ]
    answers = "".join(
        f"<li>{status}: {_answer(answer)}</li>" for status, answer in sorted(operation["responses"].items())
    )
    content = operation["responses"]["200"].get("content", {}).get("application/json")
    example = _details("Example", _json(_example(content["schema"], schemas))) if content else ""
    return (
        f'<section class="card"><h2><code>{method.upper()} {escape(path)}</code></h2>'
        f"<p><strong>{_text(operation['summary'])}.</strong> {_text(operation.get('description', ''))}</p>"
        f"{_table(('parameter', 'in', 'value', 'means'), rows)}"
        f"{_details('Answers', f'<ul>{answers}</ul>')}{example}</section>"
    )


def _answer(answer: dict[str, Any]) -> str:
    kinds = [_kind(content["schema"]) for content in answer.get("content", {}).values() if content.get("schema")]
    return f"{_text(answer['description'])} {', '.join(kinds)}".strip()


def _schema(name: str, schema: dict[str, Any]) -> str:
    rows = [
        (f"<code>{escape(key)}</code>", _kind(value), _text(value.get("description", "")))
        for key, value in schema["properties"].items()
    ]
    return (
        f'<section class="card" id="{escape(name)}"><h3>{escape(name)}</h3>'
        f"<p>{_text(schema.get('description', ''))}</p>{_table(('field', 'value', 'means'), rows)}</section>"
    )


def _text(text: str) -> str:
    """A text with code in backticks."""
    return re.sub(r"`+([^`]+)`+", r"<code>\1</code>", escape(text))


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
    """Kind of a value, in words; a schema by its name, as a link."""
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


_USUAL: dict[str | None, object] = {"string": "...", "integer": 1, "number": 0.5, "boolean": True}
_DEEPEST = 5
"""Levels of an example; some schemas hold others without end."""


def _example(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    """A value as the schema describes it: its own example where it has one."""
    while "$ref" in schema or "anyOf" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else _first(schema)
    given = [*schema.get("examples", []), *(schema[key] for key in ("const", "default") if key in schema)]
    given += schema.get("enum", [])
    if given or depth > _DEEPEST:
        return given[0] if given else "..."
    if "properties" in schema:
        return {key: _example(value, schemas, depth + 1) for key, value in schema["properties"].items()}
    if "items" in schema:
        return [_example(schema["items"], schemas, depth + 1)]
    if isinstance(inside := schema.get("additionalProperties"), dict):
        return {"...": _example(inside, schemas, depth + 1)}
    return _USUAL.get(schema.get("type"))


def _first(schema: dict[str, Any]) -> dict[str, Any]:
    """The first of several, with the example of all."""
    one: dict[str, Any] = schema["anyOf"][0]
    return {**one, "examples": schema["examples"]} if "examples" in schema and "$ref" not in one else one


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

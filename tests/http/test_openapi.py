"""The OpenAPI document is true: whatever is asked, the answer is one that it names, and never a server's error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import one_of
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from preshard.packer_service.http.answers.reference import reference_page
from preshard.packer_service.http.app import create_app
from preshard.packer_service.http.routers.page import STATIC
from preshard.packer_service.http.settings import ServiceSettings

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
REAL = {
    "name": ["tiny"],
    "pack_id": [0, 1, 2, 3],
    "index": [0, 1],
    "number": [0, 1],
    "shard": ["preshard-000000.tar", "preshard-000001.tar"],
    "doc_id": ["text-0", "question-3", "bad-empty"],
}
"""Values of path parameters for which an answer is more than a 404."""

EXAMPLES = 14
SECONDS = 240.0
"""Longest wait for an answer, of which the first compiles loops."""


@cache
def operations() -> dict[str, dict[str, Any]]:
    """Every operation by its label, and how each is asked."""
    document = create_app(ServiceSettings(root=str(Path(__file__).parent))).openapi()
    return {f"{m.upper()} {path}": op for path, ops in document["paths"].items() for m, op in ops.items()}


@pytest.fixture(scope="module")
def client(served_root: Path) -> Iterator[asgi.ASGIClient]:
    """The only client of one application, which belongs to one event loop."""
    app = create_app(ServiceSettings(root=str(served_root), rescan_seconds=60, request_seconds=SECONDS))
    with asgi.get_client(app) as client:
        yield client


@pytest.fixture(scope="module")
def requests_of(client: asgi.ASGIClient) -> dict[str, Any]:
    """Functions that make requests to each operation, legal ones and others."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
    return {each.ok().label: each.ok() for each in schema.get_all_operations()}


@pytest.mark.parametrize("label", operations())
def test_no_answer_is_undocumented(client: asgi.ASGIClient, requests_of: dict[str, Any], label: str) -> None:
    """Fails when a request, legal or not, gives a 5xx, an unnamed status, another content type or another shape."""
    operation = requests_of[label]
    statuses: set[int] = set()
    turn = 0

    @seed(0)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=one_of(operation.as_strategy(), operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)))
    def ask(case: Any) -> None:
        nonlocal turn
        turn += 1
        for parameter, real in REAL.items():
            if parameter in (case.path_parameters or {}) and (parameter == "name" or turn % 3):
                case.path_parameters[parameter] = real[turn % len(real)]
        answer = case.call(session=client, timeout=SECONDS)
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    ask()
    path = label.split()[1]
    for parameter, real in REAL.items():
        path = path.replace(f"{{{parameter}}}", str(real[0]))
    if label.startswith("GET") and "images" not in path:
        assert client.get(path, timeout=SECONDS).status_code == 200
    assert statuses


def test_every_answer_and_parameter_is_described() -> None:
    """Fails when an operation has no summary, or a status no description."""
    for label, operation in operations().items():
        assert operation["summary"], label
        assert operation["description"], label
        assert all(response["description"] for response in operation["responses"].values()), label
        assert "500" in operation["responses"], label
        for parameter in operation.get("parameters", ()):
            assert "description" in parameter or parameter["name"] in ("prefix", "contains", "source", "code", "stage")


def test_the_page_of_paths_has_schemas_and_examples() -> None:
    """Fails when /docs lacks what an answer holds or the site's header, or links to a schema that it does not show."""
    app = create_app(ServiceSettings(root=str(Path(__file__).parent)))
    html = reference_page(app.openapi(), (STATIC / "index.html").read_text(encoding="utf-8"))
    linked, shown = (
        set(re.findall(r'<a href="#(\w+)">', html)),
        set(re.findall(r'<section class="card" id="(\w+)">', html)),
    )
    assert len(linked) > 20
    assert linked - shown == set()
    assert '<header class="top">' in html
    assert 'href="/#/compare"' in html
    examples = [
        json.loads(unescape(one))
        for one in re.findall(r"<summary>Example</summary><pre[^>]*>(.*?)</pre>", html, re.DOTALL)
    ]
    assert len(examples) >= len(operations()) - 3, "all but a picture, metrics and the like"
    assert any(one.get("fill") for one in examples if isinstance(one, dict))

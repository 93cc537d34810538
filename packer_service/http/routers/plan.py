"""What if: the figures that packing some documents would give, without packing them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pyarrow as pa
from fastapi import APIRouter, Request

from packer_service.http.models.plan import PlanAnswer, PlanRequest
from packer_service.http.problems import ProblemError, not_legal
from packer_service.http.serving import Service, service_of
from packer_service.http.settings import ServiceSettings
from packer_service.plan.order import check_dp_sizes
from schemas.config import parse_config
from schemas.errors import ConfigError, PlanError

router = APIRouter(prefix="/v1", tags=["plan"])

_ONE_AT_A_TIME = threading.Lock()
"""Planning takes a whole processor; a second client is told to come back."""


@router.post("/plan", summary="What would packing these documents give?")
def plan(request: Request, asked: PlanRequest) -> PlanAnswer:
    """The answer of `preshard plan --lengths`, for lengths in the request or for the packed documents of a dataset.

    Of a dataset it takes the lengths as they were packed and its configuration, over which that of the request is laid:
    another `seq_len` or set of layouts asks a real question, another tokenizer does not.
    """
    service = service_of(request)
    table, config = _what(service, asked)
    limit = service.settings.plan_documents
    if len(table) > limit:
        raise ProblemError(
            413, "too-large", "Request too large", f"{len(table)} documents are more than {limit}, the most of a plan."
        )
    try:
        window = parse_config(config).order.window
    except ConfigError as error:
        raise not_legal(f"config: {error}") from None
    try:
        check_dp_sizes(asked.dp, window)
    except PlanError as error:
        raise not_legal(f"dp: {error}") from None
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        detail = "Another plan is being made; one is made at a time."
        raise ProblemError(503, "busy", "Busy", detail, {"Retry-After": "5"})
    try:
        return PlanAnswer.model_validate(_made(table, config, asked.dp, service.settings))
    finally:
        _ONE_AT_A_TIME.release()


def _what(service: Service, asked: PlanRequest) -> tuple[pa.Table, dict[str, Any]]:
    """The lengths and the configuration that a request is about."""
    if asked.lengths is not None:
        n = len(asked.lengths.tokens)
        columns = {
            "doc_id": pa.array([str(i) for i in range(n)], pa.string()),
            "tokens": pa.array(asked.lengths.tokens, pa.int64()),
            "images": pa.array(asked.lengths.images or [0] * n, pa.int64()),
            "source": pa.array(asked.lengths.source or ["default"] * n, pa.string()),
        }
        return pa.table(columns), asked.config
    dataset = service.catalog.dataset(asked.dataset or "")
    names = {"doc_id": "doc_id", "tokens": "length", "images": "n_images", "source": "source"}
    table = pa.table({to: dataset.column("documents.parquet", name) for to, name in names.items()})
    return table, _laid_over(dataset.manifest.config, asked.config)


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Configuration keys of a request over those of a dataset, section by section."""
    joined = dict(below)
    for key, value in above.items():
        own = below.get(key)
        joined[key] = {**own, **value} if isinstance(own, dict) and isinstance(value, dict) else value
    return joined


def _made(table: pa.Table, config: dict[str, Any], dp: list[int], settings: ServiceSettings) -> dict[str, Any]:
    """The figures, from a process that is ended when it takes too long.

    Raises:
        ProblemError: 422 no plan can be made of this; 504 it took too long; 503 the process was ended by the system.
    """
    asked = {"config": config, "dp": dp, "seconds": max(int(settings.plan_seconds), 1), "memory": settings.plan_memory}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    command = [sys.executable, "-P", "-m", "packer_service.http.plan_worker"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(asked).encode() + b"\n" + sink.getvalue().to_pybytes(),
            capture_output=True,
            timeout=settings.plan_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        detail = f"The plan took longer than {settings.plan_seconds:g} seconds; ask about fewer documents."
        raise ProblemError(504, "too-slow", "Request took too long", detail) from None
    if done.returncode:
        detail = "The process that makes plans ended without an answer, most likely for memory; ask about less."
        raise ProblemError(503, "busy", "Busy", detail, {"Retry-After": "30"})
    answer: dict[str, Any] = json.loads(done.stdout)
    if "wrong" in answer:
        raise not_legal(answer["wrong"])
    figures: dict[str, Any] = answer["figures"]
    return figures

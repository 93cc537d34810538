"""What if: the figures that packing some documents would give, without packing them."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Query, Request

from preshard.packer_service.http.models.plan import PlanKeys, PlanRequest
from preshard.packer_service.http.problems import ProblemError, not_legal
from preshard.packer_service.http.service import ServiceState, service_of
from preshard.packer_service.plan.order import check_dp_sizes
from preshard.packer_service.report.plan_keys import plan_keys, refuse_unanswered
from preshard.packer_service.report.records import PlanReport
from preshard.packer_service.report.stored_lengths import STORED_SIZES, stored_lengths
from preshard.schemas.changes import refuse_changes
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.errors import ConfigError, PlanError

router = APIRouter(prefix="/v1", tags=["plan"])


@router.get("/plan/keys", summary="What can be asked of a plan")
def keys(
    request: Request,
    dataset: Annotated[str | None, Query(max_length=4096, description="A dataset's name, for its own values.")] = None,
) -> PlanKeys:
    """Every key of a configuration with its meaning, its range and its present value, or why no plan answers for it."""
    present = service_of(request).catalog.dataset(dataset).config if dataset else PackConfig()
    return PlanKeys(dataset=dataset, keys=plan_keys(present, of_dataset=dataset is not None))


@router.post("/plan", summary="What would packing these documents give?")
def plan(request: Request, asked: PlanRequest) -> PlanReport:
    """The answer of `preshard plan --lengths`, for lengths in the request or for the packed documents of a dataset.

    For a dataset, the lengths are those of its documents as packed, and the request's configuration overrides its own.
    A key that a plan cannot answer for, such as `video.fps`, is refused: `/v1/plan/keys` lists them.
    """
    service = service_of(request)
    table, config = _lengths_and_config(service, asked)
    limit = service.settings.plan_documents
    if len(table) > limit:
        detail = f"{len(table)} documents are more than {limit}, the most that are planned at once."
        raise ProblemError(413, "too-large", "Request too large", detail)
    try:
        wanted = parse_config(config)
        window = wanted.order.window
        present = service.catalog.dataset(asked.dataset).config if asked.dataset else PackConfig()
        if asked.dataset:
            refuse_changes(wanted, asked.dataset, present, names=True)
        refuse_unanswered(wanted, present, of_dataset=bool(asked.dataset))
    except ConfigError as error:
        raise not_legal(f"config: {error}") from None
    try:
        check_dp_sizes(asked.dp, window)
    except PlanError as error:
        raise not_legal(f"dp: {error}") from None
    return PlanReport.model_validate(service.planner.make(table, config, asked.dp))


def _lengths_and_config(service: ServiceState, asked: PlanRequest) -> tuple[pa.Table, dict[str, Any]]:
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
    names = ["doc_id", "piece", "copy_number", "epoch", "source", *STORED_SIZES]
    documents = pa.table({name: dataset.column("documents.parquet", name) for name in names})
    table = stored_lengths(documents, dataset.config)
    return table, _overridden(dataset.manifest.config, asked.config)


def _overridden(own: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """A dataset's configuration with the keys of a request in place of its own, section by section."""
    joined = dict(own)
    for key, value in asked.items():
        before = own.get(key)
        joined[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return joined

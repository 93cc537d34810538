"""Planned figures of packing some documents, without packing them. The answer is ``PlanReport``."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.problems import ProblemError, busy, not_legal
from preshard.packer_service.http.service import service_of
from preshard.packer_service.plan.order import check_dp_sizes
from preshard.packer_service.plan.records import Figures
from preshard.packer_service.report.planned.plan_keys import (
    STORED_SIZES,
    ConfigurationKey,
    plan_keys,
    refuse_unanswered,
    stored_lengths,
)
from preshard.packer_service.report.records import PlanReport
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.dataset.changes import refuse_changes
from preshard.schemas.errors import ConfigError, PlanError

router = APIRouter(prefix="/v1", tags=["plan"])

MOST_DOCUMENTS = 1_000_000
"""Most documents of a plan."""

TURN_SECONDS = 1.0
"""Time in which a plan whose client has gone makes room for the next one, before that is refused."""

URGENT_SECONDS = 10.0
"""Time in which a plan stands beside answers for a processor, of which it takes a second or two. Behind them it might
not end in its time on a busy machine."""


Length = Annotated[int, Field(ge=0, lt=2**31)]
LONGEST_NAME = 256
"""Characters of a source's name at most."""


class Lengths(BaseModel):
    """Documents of which only lengths are known, in columns of equal length."""

    model_config = ConfigDict(extra="forbid")

    tokens: list[Length] = Field(description="Tokens of each document.", examples=[[812, 20480, 3300]])
    images: list[Length] | None = Field(None, description="Crops of each document; none if not given.")
    source: list[Annotated[str, Field(max_length=LONGEST_NAME)]] | None = Field(None, description="Its source.")

    @model_validator(mode="after")
    def _equally_long(self) -> Lengths:
        for name in ("images", "source"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.tokens):
                raise ValueError(f"{name} has {len(column)} values where tokens has {len(self.tokens)}")
        return self


class PlanRequest(BaseModel):
    """Lengths, or a dataset whose packed documents are to be packed again, and a configuration."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"lengths": {"tokens": [812, 20480, 3300]}, "config": {"seq_len": 32768}}]},
    )

    lengths: Lengths | None = None
    dataset: str | None = Field(None, max_length=4096, description="Name of a dataset, in place of lengths.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Configuration keys as in a YAML file; with a dataset, they override its own.",
    )
    dp: list[Annotated[int, Field(ge=1, le=2**20)]] = Field(
        default_factory=list, max_length=16, description="Data-parallel sizes to give the straggler ratio for."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> PlanRequest:
        if (self.lengths is None) == (self.dataset is None):
            raise ValueError("give lengths or dataset, and not both")
        return self


class PlanKeys(Figures):
    """Every key of a configuration, in the order in which the documentation has them."""

    dataset: str | None = Field(description="The dataset whose values these are; null for the defaults.")
    keys: list[ConfigurationKey]


@router.get("/plan/keys", summary="What can be asked of a plan", response_model=PlanKeys)
async def keys(
    request: Request,
    dataset: Annotated[str | None, Query(max_length=4096, description="A dataset's name, for its own values.")] = None,
) -> Any:
    """Every key of a configuration with its meaning, its range and its present value, or why no plan answers for it."""
    if not dataset:
        return PlanKeys(dataset=None, keys=plan_keys(PackConfig(), of_dataset=False))
    service = service_of(request)
    return await service.ask_alone(request, dataset, keys_of, {"name": dataset}, service.settings.request_seconds)


def keys_of(dataset: ServedDataset, name: str) -> PlanKeys:
    """The keys with a dataset's own values; called where it is read."""
    return PlanKeys(dataset=name, keys=plan_keys(dataset.config, of_dataset=True))


@router.post("/plan", summary="What would packing these documents give?", response_model=PlanReport)
async def plan(request: Request, asked: PlanRequest) -> Any:
    """The answer of `preshard plan --lengths`, for lengths in the request or for the packed documents of a dataset.

    For a dataset, the lengths are those of its documents as packed, and the request's configuration overrides its own.
    A key that a plan cannot answer for, such as `video.fps`, is refused: `/v1/plan/keys` lists them.
    """
    service = service_of(request)
    try:
        async with asyncio.timeout(TURN_SECONDS):
            await service.planning.acquire()
    except TimeoutError:
        raise busy("Another plan is being made, and only one is made at a time.", 5) from None
    try:
        seconds = service.settings.request_seconds + service.settings.plan_seconds
        return await service.ask_alone(request, asked.dataset, planned_of, {"asked": asked}, seconds, URGENT_SECONDS)
    finally:
        service.planning.release()


def planned_of(asked: PlanRequest, dataset: ServedDataset | None = None) -> PlanReport:
    """The figures of a plan; called in a process of its own.

    Raises:
        ProblemError: 422 no plan can be made of this; 413 it has too many documents.
    """
    from preshard.packer_service.report.planned.what_if import planned  # half a second, which only plans should pay

    present = dataset.config if dataset else PackConfig()
    table, config = _lengths_and_config(asked, dataset)
    if len(table) > MOST_DOCUMENTS:
        detail = f"{len(table)} documents are more than {MOST_DOCUMENTS}, the most that are planned at once."
        raise ProblemError(413, "too-large", "Request too large", detail)
    try:
        wanted = parse_config(config)
        window = wanted.order.window
        if asked.dataset:
            refuse_changes(wanted, asked.dataset, present, names=True)
        refuse_unanswered(wanted, present, of_dataset=bool(asked.dataset))
    except ConfigError as error:
        raise not_legal(f"config: {error}") from None
    try:
        check_dp_sizes(asked.dp, window)
    except PlanError as error:
        raise not_legal(f"dp: {error}") from None
    answer = planned(table, config, asked.dp)
    if "wrong" in answer:
        raise not_legal(answer["wrong"])
    return PlanReport.model_validate(answer["figures"])


def _lengths_and_config(asked: PlanRequest, dataset: ServedDataset | None) -> tuple[pa.Table, dict[str, Any]]:
    if asked.lengths is not None:
        n = len(asked.lengths.tokens)
        columns = {
            "doc_id": pa.array([str(i) for i in range(n)], pa.string()),
            "tokens": pa.array(asked.lengths.tokens, pa.int64()),
            "images": pa.array(asked.lengths.images or [0] * n, pa.int64()),
            "source": pa.array(asked.lengths.source or ["default"] * n, pa.string()),
        }
        return pa.table(columns), asked.config
    assert dataset is not None
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

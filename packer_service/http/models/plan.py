"""The what-if question and its answer."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from packer_service.http.models.common import Answer

Length = Annotated[int, Field(ge=0, lt=2**31)]
LONGEST_ID = 256


class Lengths(BaseModel):
    """Documents of which only lengths are known, in columns of equal length."""

    model_config = ConfigDict(extra="forbid")

    tokens: list[Length] = Field(description="Tokens of each document.", examples=[[812, 20480, 3300]])
    images: list[Length] | None = Field(None, description="Crops of each document; none when not given.")
    source: list[Annotated[str, Field(max_length=LONGEST_ID)]] | None = Field(None, description="Its source.")

    @model_validator(mode="after")
    def _equally_long(self) -> Lengths:
        for name in ("images", "source"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.tokens):
                raise ValueError(f"{name} has {len(column)} values where tokens has {len(self.tokens)}")
        return self


class PlanRequest(BaseModel):
    """Lengths, or a dataset whose packed documents are packed anew, and a configuration."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"lengths": {"tokens": [812, 20480, 3300]}, "config": {"seq_len": 32768}}]},
    )

    lengths: Lengths | None = None
    dataset: str | None = Field(None, max_length=4096, description="Name of a dataset, instead of lengths.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Configuration keys, as in a YAML file; on top of the dataset's own, where one is given.",
    )
    dp: list[Annotated[int, Field(ge=1, le=2**20)]] = Field(
        default_factory=list, max_length=16, description="Data-parallel sizes to give the straggler ratio of."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> PlanRequest:
        if (self.lengths is None) == (self.dataset is None):
            raise ValueError("give lengths or dataset, and not both")
        return self


class LayoutMeans(Answer):
    """Means over the sampled packs; paths as multiples of the tile floor."""

    gather: float
    ring: float
    traffic: float
    imbalance: float
    cost: float
    rank_attention: list[float]
    rank_tiles: list[float]


class ImageMeans(Answer):
    """Means over the sampled packs."""

    imbalance: float
    pooled_imbalance: float
    rank_images: list[float]
    rank_pooled_tokens: list[float]


class PlanAnswer(Answer):
    """What packing these documents would give: the figures of `preshard plan --lengths FILE --json`."""

    seq_len: int
    source_documents: int
    documents: int
    rejected: int
    packs: int
    tokens: int
    padding_tokens: int
    fill: float
    padding: dict[str, int]
    packs_for_tokens: int
    packs_for_images: int
    straggler_ratio: dict[str, float]
    cost_percentiles: dict[str, float]
    plan_seconds: float
    balanced_packs: int = Field(description="Packs that the balance is taken from.")
    balance: dict[str, dict[str, LayoutMeans]]
    images: dict[str, ImageMeans]
    preferred: dict[str, dict[str, int]]
    rejects: dict[str, int]
    rejects_by_source: dict[str, dict[str, int]]
    truncated_tokens: dict[str, int]

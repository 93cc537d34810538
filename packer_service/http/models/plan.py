"""The what-if question, and what can be asked. The answer of a plan is ``PlanReport``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from preshard.packer_service.http.models.common import Answer
from preshard.packer_service.report.planned.plan_keys import ConfigurationKey

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


class PlanKeys(Answer):
    """Every key of a configuration, in the order in which the documentation has them."""

    dataset: str | None = Field(description="The dataset whose values these are; null for the defaults.")
    keys: list[ConfigurationKey]

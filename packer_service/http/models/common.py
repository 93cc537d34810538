"""Parts that several answers share."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class Answer(BaseModel):
    """Base of every answer."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class Problem(BaseModel):
    """What went wrong, as problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(
        "about:blank", description="A URI that names the kind of problem; about:blank: the status says it."
    )
    title: str = Field(description="The kind of problem, in a few words.", examples=["No such dataset"])
    status: int = Field(description="The HTTP status.", examples=[404])
    detail: str = Field(description="What was wrong with this request, and what is legal.")
    instance: str = Field(description="The path of the request.")
    request_id: str = Field(description="Names the request in the access log.")


class PageOf(Answer, Generic[T]):
    """Part of a list. The `Link` header names the neighbouring parts too."""

    items: list[T]
    total: int = Field(description="Items of the whole list.", examples=[14])
    offset: int = Field(description="Items before the first of this part.", examples=[0])
    limit: int = Field(description="The most items that this part could hold.", examples=[50])
    next: str | None = Field(description="Path and query of the next part; null at the end.")
    previous: str | None = Field(description="Path and query of the part before; null at the start.")


class Spread(Answer):
    """How a measure is spread over packs, those left out for which it has no meaning (no image, no allowed pair)."""

    packs: int = Field(description="Packs that have the measure.", examples=[14])
    mean: float | None = Field(description="Mean over packs; null without packs.", examples=[1.031])
    p95: float | None = Field(description="The least value that 95% of the packs do not exceed.", examples=[1.094])
    max: float | None = Field(description="The worst pack's.", examples=[1.12])


class RankLoads(Answer):
    """How a load is shared by ranks."""

    rank_mean: list[float] = Field(description="Each rank's mean load of a pack.", examples=[[48.5, 47.9]])
    imbalance: Spread = Field(description="Largest load of a rank over the mean of all ranks, pack by pack.")


class Histogram(Answer):
    """Counts of values between edges: bar i counts `edges[i] <= value < edges[i + 1]`, the last one its end too."""

    unit: str = Field(description="What the edges count.", examples=["tokens"])
    edges: list[float] = Field(examples=[[0, 1024, 2048]])
    counts: list[int] = Field(examples=[[118, 31]])


JsonObject = Annotated[dict[str, Any], Field(description="Free JSON.")]

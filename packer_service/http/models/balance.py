"""Answers about how evenly ranks are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model

from preshard.packer_service.http.models.datasets import PageOf
from preshard.packer_service.plan.records import Figures
from preshard.packer_service.report.figures import MEASURED
from preshard.packer_service.report.records import ImageBalance, LayoutBalance, Spread

if TYPE_CHECKING:
    Measure = str
else:
    Measure = Literal[tuple(MEASURED)]
    """Measures to compare packs and shards: imbalances of loads, critical paths over the tile floor, or KV traffic."""


class Balance(Figures):
    """Layouts at their ring degrees side by side, and the images: those asked for, or else all."""

    dataset_id: str
    shard: str | None = Field(description="The shard whose packs these are; null for the whole dataset.")
    seq_len: int
    layouts: list[LayoutBalance]
    images: list[ImageBalance]
    preferred: dict[int, dict[str, int]] = Field(
        description="By ring degree: the packs for which the cost model prefers each of these layouts."
    )


class Heaviest(Figures):
    """The document that takes most of a pack's attention, and what else the pack holds."""

    doc_id: str
    source: str
    length: int = Field(description="Tokens of the document in this pack.")
    share_of_tokens: float = Field(description="Of the pack's real tokens.")
    share_of_attention: float | None = Field(
        description="Of the pack's allowed pairs; null where only tables are read, as in a list of shards."
    )
    n_images: int
    n_documents: int = Field(description="Documents of the pack.")
    pack_images: int = Field(description="Crops of the pack.")


class WorstPack(Figures):
    """The pack of a shard that is worst by the measure, and why."""

    pack_id: int
    value: float = Field(description="The measure's value in this pack.")
    heaviest: Heaviest | None = Field(description="Null where all documents of the pack were lost while writing.")
    why: str = Field(description="The same in a sentence.")


class _Shard(Figures):
    name: str = Field(examples=["preshard-000000.tar"])
    first_pack: int
    packs: int
    bytes: int
    sha256: str
    fill: float
    documents: int
    images: int
    cost: float = Field(description="Mean cost of its packs, in GFLOP.")


_spreads: Any = {
    figure.of_shard or key: (Spread, Field(description=figure.measured)) for key, figure in MEASURED.items()
}


class ShardRow(create_model("MeasuredShard", __base__=_Shard, **_spreads)):  # type: ignore[misc]
    """A shard, its size and its balance at the chosen layout, ring degree and CP size."""

    worst: WorstPack | None = Field(description="Its worst pack by `sort`; null where no pack has the measure.")


class Chosen(Figures):
    """The layout and degrees that an answer is about: those asked for, or the service's defaults."""

    layout: str = Field(description="Default: `balanced_ring` where it is stored, else the last one stored.")
    ring_degree: int = Field(description="Default: `cp` where that is planned, else the largest.")
    cp_size: int = Field(
        description="CP size of the image boundaries. Default: `ring` where that is planned, else the largest."
    )


class ShardPage(PageOf[ShardRow]):
    """Shards, the worst balanced first unless asked otherwise."""

    chosen: Chosen
    sort: str


class ShardBalance(Balance):
    """The balance of one shard, and its worst packs by the measure."""

    chosen: Chosen
    measure: Measure
    worst: list[WorstPack] = Field(description="At most five, the worst first.")

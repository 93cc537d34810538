"""Answers about how evenly ranks are loaded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from packer_service.http.models.common import Answer, PageOf, RankLoads, Spread

Measure = Literal["attention", "gather", "ring", "traffic", "images", "pooled_tokens"]
"""What packs and shards are compared by: imbalances of loads, critical paths over the tile floor, or KV traffic."""


class LayoutBalance(Answer):
    """One token layout at one ring degree, over packs."""

    layout: str = Field(examples=["balanced_ring"])
    ring: int = Field(description="Ring degree.", examples=[8])
    packs: int
    tile_floor: float = Field(description="Mean over packs: tiles of the whole mask over the ring degree.")
    gather: Spread = Field(description="Gather critical path over the tile floor.")
    ring_path: Spread = Field(description="Ring critical path over the tile floor.")
    traffic: Spread = Field(description="Keys needed and not held, over those that gathering everything moves.")
    gather_tiles: float = Field(description="Mean gather critical path, in tiles.")
    ring_tiles: float = Field(description="Mean ring critical path, in tiles.")
    attention: RankLoads = Field(description="Allowed pairs of each rank's queries.")
    tiles: RankLoads = Field(description="Tiles of each rank.")
    keys_fetched: list[float] = Field(description="Keys that each rank needs and does not hold: its mean, in tokens.")
    cost: float = Field(description="Mean modelled cost of the better of gather and ring attention, in tiles.")


class ImageBalance(Answer):
    """The image boundaries of one CP size, over packs."""

    cp: int = Field(description="CP size.", examples=[8])
    packs: int
    images: RankLoads = Field(description="Crops of each rank.")
    pooled_tokens: RankLoads = Field(description="Pooled rows of each rank.")


class Balance(Answer):
    """Every layout at every ring degree beside each other, and the images; those asked for, where some were."""

    dataset_id: str
    shard: str | None = Field(description="The shard whose packs are meant; null: all of the dataset.")
    seq_len: int
    layouts: list[LayoutBalance]
    images: list[ImageBalance]


class Heaviest(Answer):
    """The document that most of a pack's attention goes to, and what else weighs on its worst rank."""

    doc_id: str
    source: str
    length: int = Field(description="Tokens of the document in this pack.")
    share_of_tokens: float = Field(description="Of the pack's real tokens.")
    share_of_attention: float | None = Field(
        description="Of the pack's allowed pairs; null where only tables were read, as in a list of shards."
    )
    n_images: int
    n_documents: int = Field(description="Documents of the pack.")
    pack_images: int = Field(description="Crops of the pack.")


class WorstPack(Answer):
    """The pack of a shard that is worst by the measure, and why."""

    pack_id: int
    value: float = Field(description="The measure's value in this pack.")
    heaviest: Heaviest | None = Field(description="Null in a pack all of whose documents were lost in writing.")
    why: str = Field(description="The same in a sentence.")


class ShardEntry(Answer):
    """A shard, its size and its balance at the chosen layout, ring degree and CP size."""

    name: str = Field(examples=["preshard-000000.tar"])
    first_pack: int
    packs: int
    bytes: int
    sha256: str
    fill: float
    documents: int
    images: int
    cost: float = Field(description="Mean cost of its packs, in GFLOP.")
    attention: Spread = Field(description="Imbalance of allowed pairs.")
    gather: Spread = Field(description="Gather critical path over the tile floor.")
    ring: Spread = Field(description="Ring critical path over the tile floor.")
    traffic: Spread
    image_imbalance: Spread = Field(description="Imbalance of crops.")
    pooled_imbalance: Spread = Field(description="Imbalance of pooled rows.")
    worst: WorstPack | None = Field(description="Its worst pack by `sort`; null where no pack has the measure.")


class Chosen(Answer):
    """The layout and degrees that an answer is about: those asked for, or what the service chose for want of a word."""

    layout: str = Field(description="Default: `balanced_ring` where there is one, else the last one stored.")
    ring: int = Field(description="Ring degree. Default: `cp` where planned, else the largest.")
    cp: int = Field(description="CP size of the image boundaries. Default: `ring` where planned, else the largest.")


class ShardPage(PageOf[ShardEntry]):
    """Shards, the worst balanced first unless asked otherwise."""

    chosen: Chosen
    sort: str


class ShardBalance(Balance):
    """The balance of one shard, and its worst packs by the measure."""

    chosen: Chosen
    measure: Measure
    worst: list[WorstPack] = Field(description="At most five, the worst first.")

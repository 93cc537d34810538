"""Answers about single packs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, create_model

from preshard.packer_service.http.models.balance import Chosen
from preshard.packer_service.http.models.datasets import PageOf
from preshard.packer_service.plan.records import Figures
from preshard.packer_service.report.figures import MEASURED
from preshard.schemas.manifest import UnitKind


class _Pack(Figures):
    pack_id: int
    key: str = Field(examples=["0000000007"])
    shard: str
    index_in_shard: int
    n_tokens: int
    n_padding: int
    fill: float
    n_documents: int
    n_units: int = Field(description="Still images and frames (or groups of frames) that stay whole on a rank.")
    n_images: int
    n_patches: int = Field(description="Patches that the vision encoder sees.")
    n_pooled_tokens: int
    load: int = Field(description="The vision encoder's work, in multiplications of its forward pass.")
    attention_area: int = Field(description="Allowed pairs of the mask.")
    attention_tiles: int = Field(description="128 x 128 tiles with an allowed pair, in natural order.")
    cost: float = Field(description="GFLOP.")


_values: Any = {key: (float | None, Field(description=figure.measured)) for key, figure in MEASURED.items()}


class PackRow(create_model("MeasuredPack", __base__=_Pack, **_values)):  # type: ignore[misc]
    """A pack in the list with its balance at the chosen layout, ring degree and CP size, null where there is none."""


class PackPage(PageOf[PackRow]):
    """Packs in the requested order."""

    chosen: Chosen
    sort: str


class DocumentInPack(Figures):
    """A document's place in the pack. `number` is its value in `doc_ids`."""

    number: int
    doc_id: str
    piece: int
    copy_number: int = Field(description="Which copy of the document it is, where a mixture takes several.")
    epoch: int
    source: str
    start: int
    length: int
    aligned_length: int
    n_units: int
    n_images: int
    n_patches: int
    load: int = Field(description="The vision encoder's work for it, in multiplications.")
    label_cut: bool = Field(description="Whether a cut at its end took the label of its last token.")
    medium_cut: bool = Field(description="Whether a cut at its end went through a video.")
    preference: bool = Field(False, description="Whether branch 1 is a better answer than branch 2.")
    branches: int = Field(description="Annotations; 0 where it has none.")
    attention_area: int = Field(description="Allowed pairs of the document.")


class UnitInPack(Figures):
    """A unit, which the vision encoder must not split: a still image with its crops, a frame, or several frames."""

    index: int
    document: int = Field(description="Number of its document in the pack.")
    medium: int = Field(description="Number of its image or video in the document.")
    kind: UnitKind
    start: int = Field(description="Its first token, marks included.")
    end: int = Field(description="One past its last token.")
    grid: list[int] = Field(description="Patches along time, height and width.")
    patches: int
    rows: int = Field(description="Pooled rows, and so tokens that they fill.")
    load: int = Field(description="The vision encoder's work, in multiplications.")
    time_step: float = Field(description="Growth of the temporal position to the next unit of its video.")
    first_image: int = Field(description="Its first crop.")
    end_image: int = Field(description="One past its last crop.")


class ImageInPack(Figures):
    """A crop. Its bytes are at `url`; its pooled rows fill tokens between `start` and `end`."""

    index: int
    url: str
    doc_id: str
    unit: int = Field(description="The frame or still image that it belongs to.")
    width: int
    height: int
    timestamp: float | None = Field(description="Seconds from the clip's start; null for a still image.")
    bytes: int
    start: int = Field(
        description="First token that its pooled rows fill; of its unit, where rows do not belong to single crops."
    )
    end: int = Field(description="One past the last such token.")


class RankBoundary(Figures):
    """Half-open ranges of the crops and pooled rows of one CP rank."""

    rank: int
    start_image: int
    end_image: int
    start_pooled: int
    end_pooled: int


class PackDetail(_Pack):
    """Everything in the head of a pack's sample."""

    offset: int = Field(description="Byte in the shard at which the sample's first tar header begins.")
    header_size: int
    size: int
    seq_len: int
    axes: int = Field(description="Axes of the positions: 1, or 3 for time, height and width.")
    loss_tokens: int = Field(description="Tokens with a label.")
    documents: list[DocumentInPack]
    units: list[UnitInPack] = Field(description="In the order in which they are stored, as are images.")
    images: list[ImageInPack]
    shares_crops: bool = Field(description="Whether ranks share the crops of a unit.")
    boundaries: dict[str, list[RankBoundary]] = Field(description="By CP size.")
    layouts: list[str]
    ring_degrees: list[int]
    cp_sizes: list[int]
    previous: int | None
    next: int | None


class RingStep(Figures):
    """One step of ring attention, in which rank r has the keys of rank (r - step) mod R."""

    step: int
    tiles: list[int] = Field(description="Tiles of each rank in this step.")
    most: int
    slowest: int = Field(description="The first of the ranks with the most tiles.")


class RingRank(Figures):
    """Tokens and work of a ring rank."""

    ring_rank: int
    tokens: int
    padding: int
    loss_tokens: int
    attention_area: int
    tiles: int
    keys_fetched: int = Field(description="Keys that it needs but does not hold, in tokens.")
    needs: list[tuple[int, int]] = Field(description="Half-open ranges of the key blocks that its queries see.")


class CpRank(Figures):
    """A CP rank's tokens and crops. `runs` are ranges (start, length) in natural order, listed in slice order."""

    cp_rank: int
    ring_rank: int
    ulysses_rank: int
    runs: list[tuple[int, int]]
    first_image: int | None = Field(description="Null where no image boundaries were planned for this CP size.")
    end_image: int | None
    pooled_tokens: int | None


class PackLayout(Figures):
    """Tokens and work of each rank under one layout at one ring and Ulysses degree."""

    pack_id: int
    layout: str
    ring_degree: int
    ulysses_degree: int
    cp_size: int = Field(description="Ring degree times Ulysses degree.")
    seq_len: int
    block_size: int
    tile: int = Field(description="Side of a tile, in tokens.")
    runs: list[tuple[int, int, int]] = Field(description="(ring_rank, start, length), rank after rank, as stored.")
    whole_tiles: int
    tile_floor: float
    gather_path_tiles: int = Field(description="Tiles of the busiest rank.")
    ring_path_tiles: int = Field(description="Sum over ring steps of the busiest rank's tiles in that step.")
    gather_path: float | None = Field(description="Gather critical path as a multiple of the tile floor.")
    ring_path: float | None = Field(description="Ring critical path as a multiple of the tile floor.")
    traffic: float
    imbalance: float | None = Field(description="Imbalance of allowed pairs.")
    figures: dict[str, float | None] = Field(
        description="Every figure of layouts that packs are sorted by, by its key, from measures.parquet."
    )
    gather_cost: float = Field(description="Modelled, in tiles.")
    ring_cost: float = Field(description="Modelled, in tiles.")
    tiles: list[list[int]] = Field(description="tiles[r][s]: rows along rank r's slice, columns along rank s's.")
    steps: list[RingStep]
    ranks: list[RingRank]
    cp_ranks: list[CpRank]


class MaskPicture(Figures):
    """The mask in cells of `cell` x `cell` tokens: rows are queries, columns keys."""

    pack_id: int
    seq_len: int
    size: int = Field(description="Cells along one side.")
    cell: int = Field(description="Tokens along a cell's side; the last cell may be smaller.")
    share: list[list[float]] = Field(description="Share of each cell's pairs that the mask allows, 0 to 1.")
    documents: list[int] = Field(description="Document with most tokens in each cell's range; -1 for padding.")
    layout: str
    ring_degree: int
    owners: list[int] = Field(description="Ring rank with most tokens in each cell's range.")


class TokenSpan(Figures):
    """Consecutive tokens of one kind, document, branch and loss. `text` is null for images and padding."""

    start: int
    end: int
    kind: Literal["text", "image", "padding"]
    document: int = Field(description="Number of the document; -1 for padding.")
    branch: int
    loss: bool = Field(description="Whether the token before each of these has it as its label.")
    weight: float = Field(description="Weight of that loss; 0 where there is none.")
    text: str | None
    image: int | None = Field(
        description="The crop whose pooled rows these tokens are; the first of its unit, where rows do not belong to "
        "single crops."
    )
    unit: int | None = Field(description="The unit whose pooled rows these tokens are.")


class PackText(Figures):
    """A range of tokens, and their text."""

    pack_id: int
    start: int
    end: int
    tokenizer: str
    tokens: list[int]
    labels: list[int] = Field(description="The token to predict at each position; -100 for none.")
    loss_weights: list[float]
    position_ids: list[list[int]] = Field(description="Positions, for each axis.")
    spans: list[TokenSpan]

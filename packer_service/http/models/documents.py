"""Answers about documents: where they went, or why they did not."""

from __future__ import annotations

from pydantic import Field

from preshard.packer_service.http.models.balance import Chosen
from preshard.packer_service.http.models.datasets import PageOf
from preshard.packer_service.plan.records import Figures
from preshard.packer_service.report.document import ShownSpan
from preshard.schemas.manifest import UnitKind


class DocumentRow(Figures):
    """A packed document, or one piece of it."""

    doc_id: str
    piece: int
    copy_number: int = Field(description="Which copy of the document it is, where a mixture takes several.")
    epoch: int
    source: str
    pack_id: int
    start: int
    length: int
    n_units: int
    n_images: int
    n_patches: int
    load: int = Field(description="The vision encoder's work for it, in multiplications.")
    truncated_tokens: int = Field(description="Tokens that truncation cut off after this piece.")


class DocumentPage(PageOf[DocumentRow]):
    """Packed documents in the order of their packs."""


class TokensOnRank(Figures):
    """Number of tokens of a document that a ring rank holds."""

    ring_rank: int
    tokens: int


class PlacedPiece(DocumentRow):
    """Place of a piece, and the ranks that hold it."""

    number: int = Field(description="Its number among the documents of the pack.")
    key: str
    shard: str
    aligned_length: int
    ranks: list[TokensOnRank]
    images: list[int] | None = Field(description="Its range of the pack's crops: the first, and one past the last.")


class RejectRow(Figures):
    """A rejected document."""

    doc_id: str
    source: str
    location: str = Field(description="File and row.")
    stage: str = Field(description="`read`, `measure`, `plan` or `write`.", examples=["read"])
    code: str = Field(examples=["bad_image"])
    message: str


class RejectPage(PageOf[RejectRow]):
    """Rejected documents in source order, with counts of all that match."""

    by_code: dict[str, int]
    by_source: dict[str, int]
    by_stage: dict[str, int]


class Whereabouts(Figures):
    """A document's pieces and its rejects. One of the two is empty unless part of it was lost, or another row of the
    source has the same id."""

    doc_id: str
    chosen: Chosen
    pieces: list[PlacedPiece]
    rejects: list[RejectRow]
    summary: str = Field(description="The same as a sentence.")


class CropToShow(Figures):
    """A stored picture. Its bytes are at `url`."""

    index: int = Field(description="Its number in the pack.")
    url: str
    width: int
    height: int
    timestamp: float | None = Field(description="Seconds from the clip's start; null for a still image.")


class UnitToShow(Figures):
    """A still image with its crops, a frame, or several frames, and the tokens that stand for it."""

    number: int = Field(description="Its number in the document, which spans refer to.")
    medium: int = Field(description="Number of its image or video in the document.")
    kind: UnitKind
    start: int = Field(description="Its first token, marks included, counted from the start of the document.")
    end: int = Field(description="One past its last token.")
    grid: list[int] = Field(description="Patches along time, height and width.")
    patches: int = Field(description="Patches that the vision encoder sees.")
    rows: int = Field(description="Feature rows, and so tokens that they fill.")
    load: int = Field(description="The vision encoder's work, in multiplications of its forward pass.")
    crops: list[CropToShow]


class DocumentToRead(Figures):
    """A document of a pack, or a part of its tokens."""

    pack_id: int
    number: int = Field(description="Its number in the pack.")
    doc_id: str
    piece: int
    source: str
    first_token: int = Field(description="Where in the pack it begins.")
    length: int = Field(description="Its tokens.")
    loss_tokens: int = Field(description="Those of them that have a label.")
    annotations: int = Field(description="0 where it has none.")
    tokenizer: str
    start: int = Field(description="First token of this answer, counted from the start of the document.")
    end: int = Field(description="One past the last one.")
    spans: list[ShownSpan]
    units: list[UnitToShow] = Field(description="Units that stand in this part.")
    previous: int | None = Field(description="Number of the document before it in the pack.")
    next: int | None = Field(description="Number of the document after it.")

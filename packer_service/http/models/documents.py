"""Answers about documents: where they went, or why they did not."""

from __future__ import annotations

from pydantic import Field

from preshard.packer_service.http.models.balance import Chosen
from preshard.packer_service.http.models.common import Answer, PageOf


class DocumentRow(Answer):
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


class TokensOnRank(Answer):
    """How many tokens of a document a ring rank holds."""

    ring_rank: int
    tokens: int


class PlacedPiece(DocumentRow):
    """Where a piece lies, and which ranks hold it."""

    number: int = Field(description="Its number among the documents of the pack.")
    key: str
    shard: str
    aligned_length: int
    ranks: list[TokensOnRank]
    images: list[int] | None = Field(description="Its range of the pack's crops: the first, and one past the last.")


class RejectRow(Answer):
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


class Whereabouts(Answer):
    """Where a document went: its pieces and its rejects. One of the two is empty unless part of it was lost, or another
    row of the source has the same id."""

    doc_id: str
    chosen: Chosen
    pieces: list[PlacedPiece]
    rejects: list[RejectRow]
    summary: str = Field(description="The same as a sentence.")

"""Answers that show a packed document as it is read: text in runs of equal loss, pictures in place."""

from __future__ import annotations

from pydantic import Field

from preshard.packer_service.http.models.common import Answer
from preshard.packer_service.report.document.shown import ShownSpan
from preshard.schemas.manifest import UnitKind


class CropToShow(Answer):
    """A stored picture. Its bytes are at `url`."""

    index: int = Field(description="Its number in the pack.")
    url: str
    width: int
    height: int
    timestamp: float | None = Field(description="Seconds from the clip's start; null for a still image.")


class UnitToShow(Answer):
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


class DocumentToRead(Answer):
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

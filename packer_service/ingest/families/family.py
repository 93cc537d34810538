"""What a kind of model makes of an image or a video, from its size alone: pieces of text, rows, units and crops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from preshard.packer_service.ingest.document import MediumKind

if TYPE_CHECKING:  # pydantic, which it brings, would take a third of the start of a process of decoders
    from preshard.schemas.manifest import UnitKind

Scaling = Literal["reduced", "bicubic", "bicubic_16_bits", "bilinear"]
"""How a picture becomes its canvas: as :mod:`preshard.packer_service.ingest.media.shrink` does it (``reduced``), by
Pillow's bicubic filter (``bicubic``), by torch's (``bicubic_16_bits``), or by torch's interpolation between four pixels
without a filter (``bilinear``)."""


Token = str | int
"""A special token as it is spelled, or its id where the vocabulary has no spelling for it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """``count`` feature rows of a unit, one after the other, each filling one ``token``."""

    unit: int
    count: int
    token: Token


@dataclass(frozen=True, slots=True)
class Mark:
    """A special token that belongs to a unit and is filled by no row."""

    unit: int
    token: Token


Piece = str | Mark | Rows
"""What stands in a document for an image or video, in order. A ``str`` is text between units, such as a time stamp."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CropShape:
    """One picture to store: the whole picture (``frame`` of a video, counted from 0, or a still image) is scaled to a
    ``canvas`` of (width, height), of which the crop is ``box``: left, top, right, bottom."""

    canvas: tuple[int, int]
    box: tuple[int, int, int, int]
    frame: int | None = None

    @classmethod
    def whole(cls, width: int, height: int, frame: int | None = None) -> CropShape:
        """The canvas itself."""
        return cls(canvas=(width, height), box=(0, 0, width, height), frame=frame)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the stored picture."""
        left, top, right, bottom = self.box
        return right - left, bottom - top


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitShape:
    """The smallest thing that the vision encoder may not be split inside of.

    Attributes:
        kind: what it shows.
        grid: patches along time, height and width.
        patches: patches that the encoder sees, of all crops together.
        rows: feature rows, so tokens that they fill.
        load: the encoder's work for it, see :mod:`preshard.packer_service.ingest.families.work`.
        crops: the pictures to store.
        time_step: by how much the temporal position grows from one unit of a video to the next, where positions have
            three axes and units of a video follow each other without a token in between; 0 with one axis.
    """

    kind: UnitKind
    grid: tuple[int, int, int]
    patches: int
    rows: int
    load: int
    crops: tuple[CropShape, ...]
    time_step: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """An image or video in a document: ``pieces`` stand where its placeholder is, ``units`` are numbered from 0."""

    pieces: tuple[Piece, ...]
    units: tuple[UnitShape, ...]
    scaling: Scaling


class Family(Protocol):
    """A kind of model, with the settings of one model folder.

    Attributes:
        model_type: as in ``config.json``.
        axes: axes of ``position_ids``, 1 or 3 (time, height, width).
        merge: patches along one side of the square that one row stands for, where positions have three axes.
        prefix: text that begins every document that does not begin with it already; empty for most.
        group_tokens: tokens that see each other in both directions inside a document; none for a causal model.
        opening: mark that belongs to a unit if it stands directly before its first token; empty if there is none.
        closing: the same after its last token.
        row_tokens: the tokens that rows fill.
        tokens: every special token that it writes, which the tokenizer must have.
        settings: what a reader needs to rebuild the model's inputs, as JSON values.
    """

    @property
    def model_type(self) -> str: ...
    @property
    def axes(self) -> Literal[1, 3]: ...
    @property
    def merge(self) -> int: ...
    @property
    def prefix(self) -> str: ...
    @property
    def group_tokens(self) -> tuple[str, ...]: ...
    @property
    def opening(self) -> str: ...
    @property
    def closing(self) -> str: ...
    @property
    def row_tokens(self) -> tuple[str, ...]: ...
    @property
    def tokens(self) -> tuple[str, ...]: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...

    def placeholder(self, kind: MediumKind) -> str:
        """The token that a chat template writes for an image or video; a placement's pieces replace it."""

    def alone(self, kind: MediumKind) -> str:
        """The placeholder with the marks that belong around it where no chat template writes them."""

    def check(self, kinds: Sequence[MediumKind]) -> None:
        """Refuses images and videos that one document may not show together.

        Raises:
            DocumentError: ``bad_row``.
        """

    def image(self, width: int, height: int) -> Placement:
        """What becomes of a still image of this size, upright.

        Raises:
            DocumentError: ``bad_image``: the model's own processor refuses the size.
        """

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:
        """What becomes of frames of this size, shown at these seconds of the clip, ascending.

        Raises:
            DocumentError: ``bad_video``: the model's own processor refuses the size or the number of frames.
        """

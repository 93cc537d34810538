"""Placement of an image or video by a kind of model, from its size alone: pieces of text, rows, units and crops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from preshard.packer_service.ingest.document import Medium, MediumKind
from preshard.schemas.errors import DocumentError

if TYPE_CHECKING:  # pydantic, which it brings, would take a third of the start of a process of decoders
    from preshard.schemas.manifest import UnitKind, VisionEncoder

Scaling = Literal["reduced", "bicubic", "bicubic_16_bits", "triangle", "triangle_16_bits", "bilinear"]
"""Ways to scale a picture to its canvas: as :mod:`preshard.packer_service.ingest.media.scale` does it (``reduced``), by
Pillow's bicubic filter (``bicubic``), by torch's (``bicubic_16_bits``), by their bilinear ones (``triangle``), or by
torch's interpolation between four pixels without a filter (``bilinear``)."""


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
"""Pieces of a document for an image or video, in order. A ``str`` is text between units, such as a time stamp."""


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

    @classmethod
    def tiled(cls, cols: int, rows: int, tile: tuple[int, int]) -> tuple[CropShape, ...]:
        """Tiles of one size in reading order and, if there are several, the whole picture as one more."""
        wide, high = tile
        boxes = [
            (col * wide, row * high, (col + 1) * wide, (row + 1) * high) for row in range(rows) for col in range(cols)
        ]
        tiles = [cls(canvas=(cols * wide, rows * high), box=box) for box in boxes]
        return (*tiles, cls.whole(wide, high)) if len(tiles) > 1 else tuple(tiles)

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
        load: the encoder's work for it, see :func:`encoder_load`.
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


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of model, with the settings of one model folder.

    Attributes:
        model_type: as in ``config.json``.
        image_token, video_token: what a chat template writes for an image and a video; a placement's pieces replace it.
        axes: axes of ``position_ids``, 1 or 3 (time, height, width).
        merge: patches along one side of the square that one row stands for, where units are grids.
        prefix: text that begins every document that does not begin with it already; empty for most.
        group_tokens: tokens that see each other in both directions inside a document; none for a causal model.
        bidirectional: instead, ``within_image`` if the rows of each unit see each other; empty if not.
        opening: mark that belongs to a unit if it stands directly before its first token; empty if there is none.
        closing: the same after its last token.
        row_tokens: the tokens that rows fill.
        media_tokens: tokens that the model takes for media which packs do not hold.
        tokens: every special token that it writes, which the tokenizer must have.
        settings: what a reader needs to rebuild the model's inputs, as JSON values.
    """

    model_type: str
    image_token: str = ""
    video_token: str = ""
    axes: Literal[1, 3] = 1
    merge: int = 1
    prefix: str = ""
    group_tokens: tuple[str, ...] = ()
    bidirectional: Literal["", "within_image"] = ""
    opening: str = ""
    closing: str = ""
    row_tokens: tuple[str, ...] = ()
    media_tokens: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def placeholder(self, kind: MediumKind) -> str:
        """The token that a chat template writes for an image or video."""
        return self.image_token if kind == "image" else self.video_token

    def around(self, kind: MediumKind) -> tuple[str, str]:  # noqa: ARG002
        """The marks that belong before and after an image or video; those that :attr:`opening` says."""
        return self.opening, self.closing

    def alone(self, kind: MediumKind) -> str:
        """The placeholder with the marks that belong around it where no chat template writes them."""
        opening, closing = self.around(kind)
        return f"{opening}{self.placeholder(kind)}{closing}"

    def check(self, kinds: Sequence[MediumKind]) -> None:
        """Refuses images and videos that one document may not show together, and those that the model does not take.

        Raises:
            DocumentError: ``bad_row``.
        """
        if "video" in kinds and type(self).video is Family.video:
            raise DocumentError("bad_row", f"shows a video, and {self.model_type} takes none")

    @property
    def shows(self) -> bool:
        """Whether it takes images or videos."""
        return type(self).image is not Family.image

    def within(self, medium: Medium) -> Family:
        """The family with the limits of pixels that a row gives this image or video.

        Raises:
            DocumentError: ``bad_row``: its processor has no such limits.
        """
        given = [name for name in ("min_pixels", "max_pixels") if getattr(medium, name) is not None]
        if given:
            reason = f"is not followed for {self.model_type} models, whose processor has no such limit; leave it out"
            raise DocumentError("bad_row", f"{given[0]} {reason}")
        return self

    def image(self, width: int, height: int) -> Placement:  # noqa: ARG002
        """Places a still image of this size, upright.

        Raises:
            DocumentError: ``bad_image``: the model's own processor refuses the size; ``bad_row``: it takes no images.
        """
        raise DocumentError("bad_row", f"shows an image, and {self.model_type} takes none")

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:  # noqa: ARG002
        """Places frames of this size, shown at these seconds of the clip, ascending.

        Raises:
            DocumentError: ``bad_video``: the model's own processor refuses the size or the number of frames;
                ``bad_row``: it takes no videos.
        """
        raise DocumentError("bad_row", f"shows a video, and {self.model_type} takes none")


def encoder_load(encoder: VisionEncoder, sequences: Sequence[int], rows: int, windows: int = 0) -> int:
    """The work of a vision encoder for one unit, in multiplications: what a rank's share of images is weighed by.

    Linear layers grow with the number of patches, and attention with the square of the patches that see each other,
    which are those of one window, crop or frame and never those of a whole video (Dosovitskiy et al. 2021; Narayanan et
    al. 2021, appendix). A backward pass takes the same multiple of every term, so it is left out.

    Args:
        encoder: its dimensions.
        sequences: patches of each sequence inside of which the encoder attends.
        rows: feature rows that come out.
        windows: sum of the squares of the windows' numbers of patches, for windowed layers.
    """
    width, layers = encoder.hidden_size, encoder.layers + encoder.windowed_layers
    keys = width if encoder.key_size is None else encoder.key_size
    per_patch = encoder.patch_inputs * width
    per_patch += layers * (2 * width**2 + 2 * width * keys + encoder.mlp_matrices * width * encoder.intermediate_size)
    pairs = encoder.layers * sum(n * n for n in sequences) + encoder.windowed_layers * windows
    per_row = encoder.row_inputs * encoder.row_hidden + encoder.row_hidden * encoder.row_outputs
    return sum(sequences) * per_patch + 2 * width * pairs + rows * per_row

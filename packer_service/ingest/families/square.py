"""The generic way, for a model of one's own: every crop is a square of one size, and marks are the tokenizer's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from preshard.packer_service.ingest.families.family import CropShape, Family, Mark, Piece, Placement, Rows, UnitShape
from preshard.packer_service.ingest.text.tokenizer import ImageFormat
from preshard.schemas.config import VisionConfig
from preshard.schemas.manifest import UnitKind


@dataclass(frozen=True)
class SquareFamily(Family):
    """Tiles of a still image and its thumbnail are one unit, and so is each frame of a video, after its time stamp.

    Chats are written by the packer itself, so no token holds an image's place.

    Attributes:
        vision: size, patches and pooling of a crop.
        marks: the tokens around and between crops.
        work_per_crop: what the vision encoder does for a crop, in multiplications.
    """

    vision: VisionConfig
    marks: ImageFormat
    work_per_crop: int
    model_type: str = field(default="square", kw_only=True)

    def image(self, width: int, height: int) -> Placement:
        """Tiles in reading order and, if there are several, a thumbnail of the whole."""
        side = self.vision.image_size
        rows, cols = choose_grid(width, height, image_size=side, max_crops=self.vision.max_crops)
        return self._placement([self._unit("image", CropShape.tiled(cols, rows, (side, side)))], [()])

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:  # noqa: ARG002
        """Each frame as one square crop."""
        side = self.vision.image_size
        units = [self._unit("frame", (CropShape.whole(side, side, frame),)) for frame in range(len(timestamps))]
        return self._placement(units, [(f"{timestamp:.1f}s",) for timestamp in timestamps])

    def _unit(self, kind: UnitKind, crops: tuple[CropShape, ...]) -> UnitShape:
        side, n = self.vision.image_size // self.vision.patch_size, len(crops)
        rows, patches = n * self.vision.pooled_per_crop, n * self.vision.patches_per_crop
        load = n * self.work_per_crop
        return UnitShape(
            kind=kind, grid=(n, side, side), patches=patches, rows=rows, load=load, crops=crops, time_step=0.0
        )

    def _placement(self, units: Sequence[UnitShape], before: Sequence[tuple[str, ...]]) -> Placement:
        pieces: list[Piece] = []
        for number, (unit, texts) in enumerate(zip(units, before, strict=True)):
            pieces += [*texts, *(Mark(number, token) for token in self.marks.begin)]
            for crop in range(len(unit.crops)):
                pieces += [Mark(number, token) for token in self.marks.separator if crop]
                pieces.append(Rows(number, self.vision.pooled_per_crop, self.marks.token))
            pieces += [Mark(number, token) for token in self.marks.end]
        return Placement(pieces=tuple(pieces), units=tuple(units), scaling="reduced")


def choose_grid(width: int, height: int, *, image_size: int, max_crops: int) -> tuple[int, int]:
    """Rows and columns of tiles that show an image nearest to its own resolution.

    The scale of an axis is the larger over the smaller of canvas (``cols`` or ``rows`` times ``image_size``) and image.
    Of all grids of at most ``max_crops`` tiles, the one whose worse axis is scaled least is taken; ties go to fewer
    tiles, then to the grid whose better axis is scaled least, then to fewer rows. This follows the tiling of Molmo
    (Deitke et al. 2024, section 3), except that the image fills its canvas without a border, as a single crop does, and
    tiles do not overlap.
    """

    def rank(grid: tuple[int, int]) -> tuple[Fraction, int, Fraction, int]:
        rows, cols = grid
        scales = [
            Fraction(max(canvas, own), min(canvas, own))
            for canvas, own in ((cols * image_size, width), (rows * image_size, height))
        ]
        return max(scales), rows * cols, min(scales), rows

    grids = ((rows, cols) for rows in range(1, max_crops + 1) for cols in range(1, max_crops // rows + 1))
    return min(grids, key=rank)

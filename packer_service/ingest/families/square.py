"""The generic way, for a model of one's own: every crop is a square of one size, and marks are the tokenizer's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from preshard.packer_service.ingest.document import MediumKind
from preshard.packer_service.ingest.families.family import CropShape, Mark, Piece, Placement, Rows, UnitShape
from preshard.packer_service.ingest.media.grid import choose_grid
from preshard.packer_service.ingest.text.marks import ImageFormat
from preshard.schemas.config import VisionConfig
from preshard.schemas.manifest import UnitKind


class SquareFamily:
    """Tiles of a still image and its thumbnail are one unit, and so is each frame of a video, after its time stamp.

    Args:
        vision: size, patches and pooling of a crop.
        marks: the tokens around and between crops.
        work_per_crop: what the vision encoder does for a crop, in multiplications.
    """

    model_type = "square"
    axes: Literal[1] = 1
    merge = 1
    prefix = opening = closing = ""
    group_tokens = row_tokens = tokens = ()
    settings: Mapping[str, Any] = {}

    def __init__(self, vision: VisionConfig, marks: ImageFormat, work_per_crop: int) -> None:
        self.vision = vision
        self.marks = marks
        self.work_per_crop = work_per_crop

    def placeholder(self, kind: MediumKind) -> str:  # noqa: ARG002
        """Chats are written by the packer itself, so nothing holds an image's place."""
        return ""

    alone = placeholder

    def check(self, kinds: Sequence[MediumKind]) -> None:
        """Images and videos may stand beside each other in any number."""

    def image(self, width: int, height: int) -> Placement:
        """Tiles in reading order and, if there are several, a thumbnail of the whole."""
        side = self.vision.image_size
        rows, cols = choose_grid(width, height, image_size=side, max_crops=self.vision.max_crops)
        canvas = (cols * side, rows * side)
        tiles = [
            CropShape(canvas=canvas, box=(col * side, row * side, (col + 1) * side, (row + 1) * side))
            for row in range(rows)
            for col in range(cols)
        ]
        crops = (*tiles, CropShape.whole(side, side)) if len(tiles) > 1 else tuple(tiles)
        return self._placement([self._unit("image", crops)], [()])

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

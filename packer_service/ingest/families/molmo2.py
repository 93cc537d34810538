"""Molmo2: overlapping crops and the whole image at low resolution; its image tokens all see each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from preshard.packer_service.ingest.document import MediumKind
from preshard.packer_service.ingest.families.family import CropShape, Mark, Piece, Placement, Rows, UnitShape
from preshard.packer_service.ingest.families.work import EncoderWork
from preshard.schemas.errors import DocumentError

ROW, COLUMN, START, LOW_START, END = "<im_patch>", "<im_col>", "<im_start>", "<low_res_im_start>", "<im_end>"
FRAME_START, FRAME_END, LOW = "<frame_start>", "<frame_end>", "<im_low>"
NEVER_NEAREST = np.float32(10e9)
"""Stands for a scale at which an image would be made smaller, where another tiling need not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Molmo2Family:
    """A still image is one unit of all its crops, with its columns marked; each frame of a video is a unit."""

    model_type: str
    side: int
    """Of a crop, in pixels."""
    patch: int
    most_crops: int
    margins: tuple[int, int]
    """Patches at the left and right (upper and lower) side of a crop that its neighbour shows as well."""
    image_pooling: tuple[int, int]
    video_pooling: tuple[int, int]
    columns: bool
    low_columns: bool
    video_columns: bool
    low_start: str
    frame_marks: tuple[str, str]
    work: EncoderWork
    image_token: str
    video_token: str
    prefix: str
    settings: Mapping[str, Any]
    axes: Literal[1] = 1
    merge: int = 1
    opening: str = ""
    closing: str = ""
    group_tokens: tuple[str, ...] = (ROW, COLUMN, START, LOW_START, FRAME_START, END, FRAME_END, LOW)

    @property
    def row_tokens(self) -> tuple[str, ...]:
        """The same for stills and videos."""
        return (ROW,)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Every special token that it writes."""
        return (*self.group_tokens, self.image_token, self.video_token)

    def placeholder(self, kind: MediumKind) -> str:
        """A token of its own, which stands for nothing else."""
        return self.image_token if kind == "image" else self.video_token

    alone = placeholder

    def check(self, kinds: Sequence[MediumKind]) -> None:
        """The model takes images or one video.

        Raises:
            DocumentError: ``bad_row``.
        """
        if "video" in kinds and len(kinds) > 1:
            raise DocumentError(
                "bad_row", f"shows {len(kinds)} images and videos, and molmo2 takes images or one video"
            )

    def image(self, width: int, height: int) -> Placement:
        """The whole image as one crop, and overlapping crops in reading order."""
        rows, cols = self.tiling(width, height)
        step = self._window * self.patch
        high, wide = (side * step + sum(self.margins) * self.patch for side in (rows, cols))
        tiles = (
            CropShape(canvas=(wide, high), box=(col * step, row * step, col * step + self.side, row * step + self.side))
            for row in range(rows)
            for col in range(cols)
        )
        crops = (CropShape.whole(self.side, self.side), *tiles)
        grid = (high // self.patch, wide // self.patch)
        whole, parts = self._pooled(self._grid, self.image_pooling), self._pooled(grid, self.image_pooling)
        pieces = [
            *_in_rows(0, whole, (self.low_start, END), self.low_columns),
            *_in_rows(0, parts, (START, END), self.columns),
        ]
        unit = self._unit("image", crops, (1, *grid), whole[0] * whole[1] + parts[0] * parts[1])
        return Placement(pieces=tuple(pieces), units=(unit,), scaling="bilinear")

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:  # noqa: ARG002
        """Its time before each frame, which is one crop."""
        pieces: list[Piece] = []
        units = []
        pooled = self._pooled(self._grid, self.video_pooling)
        for frame, timestamp in enumerate(timestamps):
            pieces.append(f"{' ' if frame else ''}{timestamp:.1f} ")
            pieces += _in_rows(frame, pooled, self.frame_marks, self.video_columns)
            crop = CropShape.whole(self.side, self.side, frame)
            units.append(self._unit("frame", (crop,), (1, *self._grid), pooled[0] * pooled[1]))
        return Placement(pieces=tuple(pieces), units=tuple(units), scaling="bilinear")

    def tiling(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of crops for which the image is enlarged least, or shrunk least if it must be (Deitke et
        al. 2024, Molmo, section 3). Scales are float32, as in the model's processor."""
        most = self.most_crops
        tilings = [(high, wide) for high in range(1, most + 1) for wide in range(1, most + 1) if high * wide <= most]
        tilings.sort(key=lambda tiling: (tiling[0] * tiling[1], tiling[0]))
        margin = sum(self.margins) * self.patch
        own = np.array([height - margin, width - margin], np.float32)
        with np.errstate(divide="ignore"):
            scales = ((np.array(tilings, np.float32) * np.float32(self._window * self.patch)) / own).min(axis=1)
        if (scales < 1).all():
            return tilings[int(scales.argmax())]
        return tilings[int(np.where(scales < 1, NEVER_NEAREST, scales).argmin())]

    @property
    def _grid(self) -> tuple[int, int]:
        """Patches of a crop along height and width."""
        return self.side // self.patch, self.side // self.patch

    @property
    def _window(self) -> int:
        """Patches from one crop to the next."""
        return self.side // self.patch - sum(self.margins)

    @staticmethod
    def _pooled(grid: tuple[int, int], pooling: tuple[int, int]) -> tuple[int, int]:
        return -(-grid[0] // pooling[0]), -(-grid[1] // pooling[1])

    def _unit(
        self, kind: Literal["image", "frame"], crops: tuple[CropShape, ...], grid: tuple[int, int, int], rows: int
    ) -> UnitShape:
        per_crop = self._grid[0] * self._grid[1]
        load = self.work.load([per_crop] * len(crops), rows)
        patches = per_crop * len(crops)
        return UnitShape(kind=kind, grid=grid, patches=patches, rows=rows, load=load, crops=crops, time_step=0.0)


def _in_rows(unit: int, pooled: tuple[int, int], marks: tuple[str, str], columns: bool) -> list[Piece]:
    """The rows of a grid between two marks, with a mark after each line if columns are marked."""
    height, width = pooled
    inside: list[Piece] = [Rows(unit, height * width, ROW)]
    if columns:
        inside = [piece for _ in range(height) for piece in (Rows(unit, width, ROW), Mark(unit, COLUMN))]
    return [Mark(unit, marks[0]), *inside, Mark(unit, marks[1])]

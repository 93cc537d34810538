"""A decoded video frame as an upright RGB image of a given size, with the same bytes on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from av.sidedata.sidedata import Type as SideData
from av.video.reformatter import Interpolation, VideoReformatter
from PIL import Image

from preshard.packer_service.ingest.families.family import Scaling
from preshard.packer_service.ingest.media.scale import scaled

# FFmpeg's scaler takes shortcuts that differ between processors and darken the picture by more than one level of 255 on
# average, unless it is told to round accurately and to be bit-exact, which FFmpeg's own tests check on every processor.
# Scaling straight from the decoder's planes is two to eight times faster than converting the full frame to RGB and
# leaving the scaling to Pillow. The support of the bicubic filter grows with the reduction, so nothing aliases.
SCALING = int(
    Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT | Interpolation.FULL_CHR_H_INT
)

# For each quarter turn or mirroring that a display matrix can ask for (ISO/IEC 14496-12, 6.2.2), by the signs of its a,
# b, c and d: what brings a stored frame into that position.
_TURNS = {
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
    (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
}

SWAPPING = (
    Image.Transpose.ROTATE_270,
    Image.Transpose.ROTATE_90,
    Image.Transpose.TRANSPOSE,
    Image.Transpose.TRANSVERSE,
)
"""Turns that swap width and height."""


class FrameScaler:
    """Scales the frames of one video, and keeps FFmpeg's tables from frame to frame.

    Args:
        size: width and height of the pictures, upright.
        scaling: ``reduced`` scales on the way from the decoder's planes to RGB, the others from the full RGB frame.
    """

    def __init__(self, size: tuple[int, int], scaling: Scaling = "reduced") -> None:
        self.size = size
        self.scaling = scaling
        self._reformatter = VideoReformatter()

    def image(self, frame: Any) -> Image.Image:
        """Scales a whole ``av.VideoFrame`` to an RGB image, upright as the file's display matrix says.

        The aspect ratio is not kept, as in SigLIP's preprocessing. Colours follow the matrix and range that the video
        names (BT.601 and limited range where it names none). High bit depths are rounded to 8 bits without tone
        mapping, and an alpha plane is dropped.
        """
        turn = _turn(frame)
        if self.scaling != "reduced":
            return scaled(_turned(self._rgb(frame, (frame.width, frame.height)), turn), self.size, self.scaling)
        stored = self.size[::-1] if turn in SWAPPING else self.size
        return _turned(self._rgb(frame, stored), turn)

    def _rgb(self, frame: Any, size: tuple[int, int]) -> Image.Image:
        width, height = size
        picture = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", interpolation=SCALING, threads=1
        )
        plane = picture.planes[0]
        return Image.frombytes("RGB", size, bytes(plane), "raw", "RGB", plane.line_size, 1)


def _turned(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    return image if turn is None else image.transpose(turn)


def _turn(frame: Any) -> Image.Transpose | None:
    matrix = frame.side_data.get(SideData.DISPLAYMATRIX)
    if matrix is None:
        return None
    a, b, c, d = (int(np.sign(value)) for value in np.frombuffer(matrix, "<i4")[[0, 1, 3, 4]])
    return _TURNS.get((a, b, c, d))

"""How a still image is cut into crops, from its size alone."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageGrid:
    """How an image is cut: ``rows`` x ``cols`` tiles in reading order and, if there are several, a thumbnail last.

    ``width`` and ``height`` are the image's own, upright.
    """

    rows: int
    cols: int
    width: int
    height: int

    @property
    def thumbnail(self) -> bool:
        """Whether the whole image follows its tiles as one more crop."""
        return self.rows * self.cols > 1

    @property
    def n_crops(self) -> int:
        return self.rows * self.cols + self.thumbnail

    @property
    def n_units(self) -> int:
        """A still image is one unit: the encoder gets all of its crops together."""
        return 1

    def of_units(self, numbers: Int64[np.ndarray, "units"]) -> ImageGrid:  # noqa: ARG002
        """The shape of some of its units, of which it has only one."""
        return self


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

"""Into how many square tiles a still image is cut, from its size alone."""

from __future__ import annotations

from fractions import Fraction


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

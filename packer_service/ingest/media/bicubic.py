"""Torch's bicubic filter for pixels of 8 bits, to the last bit and without importing torch.

Torch took the method from Pillow-SIMD: weights are rounded to whole numbers of 16 bits, sums are of whole numbers, and
the picture between the pass along the width and the pass along the height has 8 bits again. Products of matrices of
float64 give the same sums, since none of them comes near 2**53.

A new pixel is made of a few old ones that lie together, so each product takes some neighbouring new pixels and the old
ones that any of them needs. Nothing but 8 bits of a colour is ever kept of the whole picture.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64, UInt8

_SHARPNESS = -0.5
"""The parameter of the cubic kernel (Keys 1981) that filters against aliasing have."""

_REACH = 2
"""Pixels on each side that the kernel spans before it is stretched."""

_LARGEST_WEIGHT, _MOST_BITS = 2**15, 22
"""Weights are scaled by the largest power of two, of at most so many bits, that keeps them below this."""

_TOGETHER = 16
"""New pixels of one product: of more of them most weights would be zeros, and fewer would make more calls."""

_AT_ONCE = 2**18
"""Numbers of float64 that are filtered at a time: 2 MiB, which a cache of most processors holds."""


def resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """An RGB picture at another width and height, filtered so that nothing aliases.

    Args:
        image: the picture.
        size: the new width and height.
    """
    if size == image.size:
        return image
    return Image.fromarray(_along_height(_along_width(image, size[0]), size[1]))


def _along_width(image: Image.Image, width: int) -> UInt8[np.ndarray, "3 height new_width"]:
    """Some rows at a time: a large picture is never copied out of Pillow as a whole."""
    filtered = np.empty((3, image.height, width), np.uint8)
    step = max(1, _AT_ONCE // (3 * image.width))
    for top in range(0, image.height, step):
        rows = image.crop((0, top, image.width, min(top + step, image.height)))
        colours = np.asarray(rows).transpose(2, 0, 1)
        if width != image.width:
            levels = colours.astype(np.float64, order="C").reshape(-1, image.width)
            sums = np.empty((len(levels), width))
            for part in _parts(image.width, width):
                np.matmul(levels[:, part.old], part.weights.T, out=sums[:, part.new])
            colours = _rounded(sums).reshape(*colours.shape[:2], width)
        filtered[:, top : top + step] = colours
    return filtered


def _along_height(colours: UInt8[np.ndarray, "3 height width"], height: int) -> UInt8[np.ndarray, "new_height width 3"]:
    _, old_height, width = colours.shape
    if height == old_height:
        return colours.transpose(1, 2, 0)
    filtered = np.empty((height, width, 3), np.uint8)
    for part in _parts(old_height, height):
        step = max(1, _AT_ONCE // part.weights.shape[1])
        for left in range(0, width, step):
            columns = slice(left, left + step)
            for colour in range(3):
                levels = colours[colour, part.old, columns].astype(np.float64)
                filtered[part.new, columns, colour] = _rounded(part.weights @ levels)
    return filtered


def _rounded(sums: Float64[np.ndarray, "*any"]) -> Float64[np.ndarray, "*any"]:
    """Levels whose whole parts are the rounded sums; the array itself is changed."""
    sums += 0.5
    return np.clip(sums, 0, 255, out=sums)


class _Part(NamedTuple):
    """Neighbouring new pixels along an axis, the old ones that they are made of, and the share of each in each."""

    new: slice
    old: slice
    weights: Float64[np.ndarray, "new old"]


@lru_cache(maxsize=16)
def _parts(old: int, new: int) -> tuple[_Part, ...]:
    """All new pixels along an axis. Weights are whole numbers divided by a power of two, which float64 holds."""
    first, count, weights = _weights(old, new)
    parts = []
    for start in range(0, new, _TOGETHER):
        own = slice(start, min(start + _TOGETHER, new))
        low, high = int(first[own].min()), int((first + count)[own].max())
        matrix = np.zeros((own.stop - start, high - low))
        rows, taps = np.nonzero(np.arange(weights.shape[1]) < count[own, None])
        matrix[rows, first[own][rows] - low + taps] = weights[own][rows, taps]
        parts.append(_Part(own, slice(low, high), matrix))
    return tuple(parts)


def _weights(
    old: int, new: int
) -> tuple[Int64[np.ndarray, "new"], Int64[np.ndarray, "new"], Float64[np.ndarray, "new taps"]]:
    """For each new pixel the first old one that it is made of, how many there are, and the share of each."""
    scale = old / new
    stretch = max(scale, 1.0)
    centres = scale * (np.arange(new) + 0.5)
    first = np.maximum((centres - _REACH * stretch + 0.5).astype(np.int64), 0)
    count = np.minimum((centres + _REACH * stretch + 0.5).astype(np.int64), old) - first
    tap = np.arange(count.max())[None]
    inside = tap < count[:, None]
    shares = np.where(inside, _kernel((tap + first[:, None] - centres[:, None] + 0.5) * (1 / stretch)), 0.0)
    shares /= np.cumsum(shares, axis=1)[:, -1:]
    bits = _bits(float(shares.max()))
    scaled = shares * 2**bits
    return first, count, np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)) / 2**bits


def _bits(largest: float) -> int:
    fits = (bits for bits in range(_MOST_BITS) if int(0.5 + largest * 2 ** (bits + 1)) >= _LARGEST_WEIGHT)
    return next(fits, _MOST_BITS)


def _kernel(distance: Float64[np.ndarray, "*any"]) -> Float64[np.ndarray, "*any"]:
    x, a = np.abs(distance), _SHARPNESS
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    return np.where(x < 1, near, np.where(x < _REACH, (((x - 5) * x + 8) * x - 4) * a, 0.0))

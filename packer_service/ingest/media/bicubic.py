"""Torch's bicubic filter for pixels of 8 bits, to the last bit and without importing torch.

Torch took the method from Pillow-SIMD: weights are rounded to whole numbers of 16 bits, sums are of whole numbers, and
the picture between the pass along the width and the pass along the height has 8 bits again. A product of matrices of
float64 gives the same sums, since none of them comes near 2**53.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64, UInt8

_SHARPNESS = -0.5
"""The parameter of the cubic kernel (Keys 1981) that filters against aliasing have."""

_REACH = 2
"""Pixels on each side that the kernel spans before it is stretched."""

_LARGEST_WEIGHT, _MOST_BITS = 2**15, 22
"""Weights are scaled by the largest power of two, of at most so many bits, that keeps them below this."""

_BLOCK_PIXELS = 2**18
"""Pixels filtered at a time along the width: some 6 MiB as float64."""


def resized(
    pixels: UInt8[np.ndarray, "height width 3"], size: tuple[int, int]
) -> UInt8[np.ndarray, "new_height new_width 3"]:
    """A picture at another width and height, filtered so that nothing aliases."""
    width, height = size
    if width != pixels.shape[1]:
        step = max(1, _BLOCK_PIXELS // pixels.shape[1])
        blocks = [pixels[top : top + step] for top in range(0, pixels.shape[0], step)]
        pixels = np.concatenate([_along_height(block.swapaxes(0, 1), width).swapaxes(0, 1) for block in blocks])
    return _along_height(pixels, height) if height != pixels.shape[0] else pixels


def _along_height(pixels: UInt8[np.ndarray, "height width 3"], height: int) -> UInt8[np.ndarray, "new_height width 3"]:
    weights, bits = _weights(pixels.shape[0], height)
    sums = weights @ pixels.reshape(pixels.shape[0], -1).astype(np.float64)
    levels = np.floor((sums + 2 ** (bits - 1)) / 2**bits)
    return np.clip(levels, 0, 255).astype(np.uint8).reshape(height, *pixels.shape[1:])


@lru_cache(maxsize=16)
def _weights(old: int, new: int) -> tuple[Float64[np.ndarray, "new old"], int]:
    """The share of each old pixel in each new one, in whole numbers, and by how many bits these are scaled."""
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
    whole = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5))
    weights = np.zeros((new, old))
    rows, taps = np.nonzero(inside)
    weights[rows, first[rows] + taps] = whole[rows, taps]
    return weights, bits


def _bits(largest: float) -> int:
    fits = (bits for bits in range(_MOST_BITS) if int(0.5 + largest * 2 ** (bits + 1)) >= _LARGEST_WEIGHT)
    return next(fits, _MOST_BITS)


def _kernel(distance: Float64[np.ndarray, "*any"]) -> Float64[np.ndarray, "*any"]:
    x, a = np.abs(distance), _SHARPNESS
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    return np.where(x < 1, near, np.where(x < _REACH, (((x - 5) * x + 8) * x - 4) * a, 0.0))

"""A whole picture to the size at which a model's own processor shows it to the model, with the same pixels.

``bicubic`` is Pillow's filter, with which the processors of the Qwen-VL models and InternVL on Pillow scale stills, and
``bicubic_16_bits`` torch's, with which those on torchvision scale stills and videos. ``bilinear`` is torch's
interpolation between four pixels, without a filter, as Molmo2's processors use it; torch computes it in float32 with
fused multiplications and additions as soon as it has more than one thread, and so does this, on every machine and
without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image

from preshard.packer_service.ingest.media.bicubic import resized

if TYPE_CHECKING:
    from jaxtyping import Float32, Int64, UInt8

_HALF = np.float32(0.5)


FullScaling = Literal["bicubic", "bicubic_16_bits", "bilinear"]
"""The ways that begin with the picture at its full size."""


def scaled(image: Image.Image, size: tuple[int, int], scaling: FullScaling) -> Image.Image:
    """A picture at another size, regardless of its aspect ratio.

    Args:
        image: RGB.
        size: width and height.
        scaling: how.
    """
    if scaling == "bicubic":
        return image.resize(size, Image.Resampling.BICUBIC)
    if scaling == "bicubic_16_bits":
        return resized(image, size)
    return Image.fromarray(_bilinear(np.asarray(image), size))


def _bilinear(
    pixels: UInt8[np.ndarray, "height width 3"], size: tuple[int, int]
) -> UInt8[np.ndarray, "new_height new_width 3"]:
    """Each pixel from the four around its place, first along the width and then along the height."""
    width, height = size
    left, right, from_left, from_right = _neighbours(pixels.shape[1], width)
    above, below, from_above, from_below = _neighbours(pixels.shape[0], height)
    scaled_rows = np.empty((height, width, 3), np.uint8)
    for row in range(height):  # one row at a time: a large picture is never in memory as floats
        pair = pixels[[above[row], below[row]]].astype(np.float32)
        near = _fused(pair[:, left], from_left[:, None], pair[:, right] * from_right[:, None])
        mixed = _fused(near[0], from_above[row], near[1] * from_below[row])
        scaled_rows[row] = np.clip(np.rint(mixed), 0, 255)
    return scaled_rows


def _neighbours(
    old: int, new: int
) -> tuple[Int64[np.ndarray, "new"], Int64[np.ndarray, "new"], Float32[np.ndarray, "new"], Float32[np.ndarray, "new"]]:
    """For each new pixel along an axis the two old ones that its centre lies between, and their weights."""
    if old == new:
        same = np.arange(new)
        return same, same, np.ones(new, np.float32), np.zeros(new, np.float32)
    scale = np.float32(old) / np.float32(new)
    centres = _fused(np.arange(new, dtype=np.float32) + _HALF, scale, -_HALF)
    centres = np.maximum(centres, np.float32(0))
    first = np.minimum(centres.astype(np.int64), old - 1)
    weight = np.clip(centres - first.astype(np.float32), 0, 1).astype(np.float32)
    return first, np.minimum(first + 1, old - 1), np.float32(1) - weight, weight


def _fused(factor: np.ndarray, other: np.ndarray | np.float32, added: np.ndarray | np.float32) -> np.ndarray:
    """``factor * other + added`` of float32, rounded once: the product of two is exact in float64."""
    return (factor.astype(np.float64) * other + added).astype(np.float32)

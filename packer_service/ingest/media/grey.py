"""Any of Pillow's pixel modes as 8-bit RGB."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from jaxtyping import Num

_ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")


def grey_range(bands: Iterable[Image.Image]) -> tuple[float, float]:
    """The values that become black and white in an image of deep greys, given in bands.

    Integer greys of 32 bits are taken to range over 0..65535, and floating-point greys over 0..1, if their values lie
    within. If not, the image's own smallest and largest values are taken, since such files do not state their range.
    The other modes have a known range, so their bands are not read.
    """
    low, high = np.inf, -np.inf
    full = 1.0
    for band in bands:
        if band.mode not in ("I", "F"):
            return 0.0, full
        full = 65535.0 if band.mode == "I" else 1.0
        values = np.asarray(band)
        known = values[np.isfinite(values)]
        if known.size:
            low, high = min(low, float(known.min())), max(high, float(known.max()))
    within = low >= 0 and high <= full
    return (0.0, full) if within or low > high else (low, high)


def to_rgb(image: Image.Image, limits: tuple[float, float] | None = None) -> Image.Image:
    """An image as RGB: transparency over white, deep greys scaled (not clipped) to 8 bits.

    16-bit greys take the full range 0..65535; values that are not numbers become black.

    Args:
        image: of any mode.
        limits: what :func:`grey_range` found for the image of which this is a band; by default, for this image.
    """
    if image.mode.startswith("I;16"):
        return _grey((np.asarray(image).astype(np.int64) * 255 + 32767) // 65535)
    if image.mode in ("I", "F"):
        return _deep_grey(np.asarray(image), limits or grey_range([image]))
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def _deep_grey(values: Num[np.ndarray, "height width"], limits: tuple[float, float]) -> Image.Image:
    low, high = limits
    known = np.where(np.isfinite(values), values, low).astype(np.float64)
    if high == low:  # only one value, which says nothing about what is bright
        return _grey(np.zeros(values.shape))
    return _grey(np.floor((known - low) / (high - low) * 255 + 0.5))


def _grey(values: Num[np.ndarray, "height width"]) -> Image.Image:
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")

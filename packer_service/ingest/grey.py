"""Any of Pillow's pixel modes as 8-bit RGB."""

from __future__ import annotations

import numpy as np
from jaxtyping import Num
from PIL import Image

_ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")


def to_rgb(image: Image.Image) -> Image.Image:
    """An image as RGB: transparency over white, deep greys scaled (not clipped) to 8 bits.

    16-bit greys take the full range 0..65535. Integer greys of 32 bits do so too while their values allow it; beyond
    that, as with floating-point greys outside of 0..1, the image's own smallest and largest values become black and
    white, since such files say nothing of their range. Values that are no numbers become black.
    """
    if image.mode.startswith("I;16"):
        return _grey((np.asarray(image).astype(np.int64) * 255 + 32767) // 65535)
    if image.mode == "I":
        return _integer_grey(np.asarray(image).astype(np.int64))
    if image.mode == "F":
        return _float_grey(np.asarray(image).astype(np.float64))
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def _grey(values: Num[np.ndarray, "height width"]) -> Image.Image:
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")


def _integer_grey(values: Num[np.ndarray, "height width"]) -> Image.Image:
    low, high = int(values.min()), int(values.max())
    if low >= 0 and high <= 65535:
        low, high = 0, 65535
    return _grey(((values - low) * 255 + (high - low) // 2) // (high - low))


def _float_grey(values: Num[np.ndarray, "height width"]) -> Image.Image:
    finite = np.isfinite(values)
    known = values[finite]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    scaled = np.where(finite, (np.where(finite, values, low) - low) / (high - low), 0.0)
    return _grey(np.floor(scaled * 255 + 0.5))

"""A whole picture to a canvas of another size, with the same pixels on every machine.

``reduced`` takes the mean of whole blocks of a picture that is far larger than its canvas, band by band, so that it is
never in memory twice, and Pillow's bicubic filter for the rest. The others give the pixels that a model's own processor
shows it. ``bicubic`` is Pillow's filter, with which the processors of the Qwen-VL models and InternVL on Pillow scale
stills, and ``bicubic_16_bits`` torch's, with which those on torchvision scale stills and videos. ``triangle`` and
``triangle_16_bits`` are the same two with the kernel that both call bilinear, of Gemma 3's processors. ``bilinear`` is
torch's interpolation between four pixels, without a filter, as Molmo2's processors use it; torch computes it in float32
with fused multiplications and additions as soon as it has more than one thread, and so does this, without importing
torch.

Torch took its filters from Pillow-SIMD: weights are rounded to whole numbers of 16 bits, sums are of whole numbers,
and the picture between the pass along the width and the pass along the height has 8 bits again. Products of matrices of
float64 give the same sums, since none of them comes near 2**53. A new pixel is made of a few old ones that lie
together, so each product takes some neighbouring new pixels and the old ones that any of them needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from jaxtyping import Float32, Float64, Int64, Num, UInt8

FullScaling = Literal["bicubic", "bicubic_16_bits", "triangle", "triangle_16_bits", "bilinear"]
"""The ways that begin with the picture at its full size."""

BAND_PIXELS = 1 << 19
"""Pixels converted at a time: 2 MiB in four bytes per pixel, little beside any image that is worth reducing."""

REDUCING_GAP = 3
"""Factor by which an axis stays longer than its canvas when it is reduced by whole numbers. Pillow's documentation of
``reducing_gap`` calls the result nearly indistinguishable from fair resampling from 3.0 on."""

_ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")

_HALF = np.float32(0.5)

_SHARPNESS = -0.5
"""The parameter of the cubic kernel (Keys 1981) that filters against aliasing have."""

_Kernel = Literal["cubic", "triangle"]

_REACH: dict[_Kernel, int] = {"cubic": 2, "triangle": 1}
"""Pixels on each side that a kernel spans before it is stretched."""

_ON_PILLOW = {"bicubic": Image.Resampling.BICUBIC, "triangle": Image.Resampling.BILINEAR}
_IN_16_BITS: dict[str, _Kernel] = {"bicubic_16_bits": "cubic", "triangle_16_bits": "triangle"}

_LARGEST_WEIGHT, _MOST_BITS = 2**15, 22
"""Weights are scaled by the largest power of two, of at most so many bits, that keeps them below this."""

_TOGETHER = 16
"""New pixels of one product: of more of them most weights would be zeros, and fewer would make more calls."""

_AT_ONCE = 2**18
"""Numbers of float64 that are filtered at a time: 2 MiB, which a cache of most processors holds."""


def scaled(image: Image.Image, size: tuple[int, int], scaling: FullScaling) -> Image.Image:
    """A picture at another size, regardless of its aspect ratio.

    Args:
        image: RGB.
        size: width and height.
        scaling: how.
    """
    if scaling in _ON_PILLOW:
        return image.resize(size, _ON_PILLOW[scaling])
    if scaling in _IN_16_BITS:
        return _filtered(image, size, _IN_16_BITS[scaling])
    return Image.fromarray(_bilinear(np.asarray(image), size))


def turned(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    """A picture after a turn, if there is one."""
    return image if turn is None else image.transpose(turn)


class Shrunk:
    """An image as RGB, reduced by whole numbers as far as every axis stays :data:`REDUCING_GAP` times its canvas.

    A whole-number reduction takes the mean of each block of pixels; a bicubic filter does the rest.

    Args:
        image: loaded, of any mode.
        canvas: width and height of the largest picture that :meth:`scaled` will be asked for.
    """

    def __init__(self, image: Image.Image, canvas: tuple[int, int]) -> None:
        factor = (_factor(image.width, canvas[0]), _factor(image.height, canvas[1]))
        self.image = image if factor == (1, 1) and _is_rgb(image) else _reduced(image, factor)
        # Where the factor does not divide the side, the image covers only a part of the last reduced pixel.
        self.box = (0.0, 0.0, image.width / factor[0], image.height / factor[1])

    def scaled(self, size: tuple[int, int]) -> Image.Image:
        """The whole image at another size, regardless of its aspect ratio."""
        return self.image.resize(size, Image.Resampling.BICUBIC, box=self.box, reducing_gap=float(REDUCING_GAP))


def whole_rgb(image: Image.Image) -> Image.Image:
    """A loaded image of any mode as RGB at its own size."""
    return image if _is_rgb(image) else _reduced(image, (1, 1))


def _factor(side: int, canvas: int) -> int:
    return max(1, side // (canvas * REDUCING_GAP))


def _is_rgb(image: Image.Image) -> bool:
    return image.mode == "RGB" and "transparency" not in image.info


def _reduced(image: Image.Image, factor: tuple[int, int]) -> Image.Image:
    reduced = Image.new("RGB", (-(-image.width // factor[0]), -(-image.height // factor[1])))
    limits = _grey_range(band for _, band in _bands(image, 1))
    for top, band in _bands(image, factor[1]):
        rgb = band if _is_rgb(band) else _to_rgb(band, limits)
        reduced.paste(rgb.reduce(factor), (0, top // factor[1]))
    return reduced


def _bands(image: Image.Image, multiple: int) -> Iterator[tuple[int, Image.Image]]:
    """Bands of whole rows, each with its first row; the height of all but the last is a multiple of ``multiple``."""
    rows = max(1, BAND_PIXELS // image.width // multiple) * multiple
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _grey_range(bands: Iterable[Image.Image]) -> tuple[float, float] | None:
    """The values that become black and white in an image of deep greys, given in bands; None where none is scaled.

    Greys within 0..255 are levels as they are, unless they are floating-point numbers below 2, of which two levels
    would be left. Other integers range over 0..65535, and other floating-point numbers over 0..1. If the values lie
    outside, the image's own smallest and largest are taken, since such files do not state their range. The bands of
    other modes are not read.
    """
    low, high, full = np.inf, -np.inf, 65535.0
    for band in bands:
        if band.mode not in ("I", "F") and not band.mode.startswith("I;16"):
            return None
        full = 1.0 if band.mode == "F" else full
        values = np.asarray(band)
        known = values[np.isfinite(values)]
        if known.size:
            low, high = min(low, float(known.min())), max(high, float(known.max()))
    if low >= 0 and high <= 255 and (full > 1 or high >= 2):
        return None
    return (0.0, full) if (low >= 0 and high <= full) or low > high else (low, high)


def _to_rgb(image: Image.Image, limits: tuple[float, float] | None) -> Image.Image:
    """An image of any mode as RGB: transparency over white, deep greys scaled (not clipped) to 8 bits.

    Where no value has to be scaled, it is what the image processors of ``transformers`` make of a picture. Values that
    are not numbers become black.
    """
    if limits is not None:
        values, (low, high) = np.asarray(image), limits
        if high == low:  # only one value, which says nothing about what is bright
            return _grey(np.zeros(values.shape))
        known = np.where(np.isfinite(values), values, low).astype(np.float64)
        return _grey(np.floor((known - low) / (high - low) * 255 + 0.5))
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def _grey(values: Num[np.ndarray, "height width"]) -> Image.Image:
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")


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
    """The two old pixels between which the centre of each new pixel along an axis lies, and their weights."""
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


def _filtered(image: Image.Image, size: tuple[int, int], kernel: _Kernel) -> Image.Image:
    """An RGB picture at another width and height, filtered as torch does."""
    if size == image.size:
        return image
    return Image.fromarray(_along_height(_along_width(image, size[0], kernel), size[1], kernel))


def _along_width(image: Image.Image, width: int, kernel: _Kernel) -> UInt8[np.ndarray, "3 height new_width"]:
    """Some rows at a time: a large picture is never copied out of Pillow as a whole."""
    filtered = np.empty((3, image.height, width), np.uint8)
    step = max(1, _AT_ONCE // (3 * image.width))
    for top in range(0, image.height, step):
        rows = image.crop((0, top, image.width, min(top + step, image.height)))
        colours = np.asarray(rows).transpose(2, 0, 1)
        if width != image.width:
            levels = colours.astype(np.float64, order="C").reshape(-1, image.width)
            sums = np.empty((len(levels), width))
            for part in _parts(image.width, width, kernel):
                np.matmul(levels[:, part.old], part.weights.T, out=sums[:, part.new])
            colours = _rounded(sums).reshape(*colours.shape[:2], width)
        filtered[:, top : top + step] = colours
    return filtered


def _along_height(
    colours: UInt8[np.ndarray, "3 height width"], height: int, kernel: _Kernel
) -> UInt8[np.ndarray, "new_height width 3"]:
    _, old_height, width = colours.shape
    if height == old_height:
        return colours.transpose(1, 2, 0)
    filtered = np.empty((height, width, 3), np.uint8)
    for part in _parts(old_height, height, kernel):
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
def _parts(old: int, new: int, kernel: _Kernel) -> tuple[_Part, ...]:
    """All new pixels along an axis. Weights are whole numbers divided by a power of two, which float64 holds."""
    first, count, weights = _weights(old, new, kernel)
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
    old: int, new: int, kernel: _Kernel
) -> tuple[Int64[np.ndarray, "new"], Int64[np.ndarray, "new"], Float64[np.ndarray, "new taps"]]:
    """First old pixel of each new one along an axis, the number of its old pixels, and the share of each."""
    scale = old / new
    stretch = max(scale, 1.0)
    reach, shape = _REACH[kernel] * stretch, {"cubic": _cubic, "triangle": _triangle}[kernel]
    centres = scale * (np.arange(new) + 0.5)
    first = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    count = np.minimum((centres + reach + 0.5).astype(np.int64), old) - first
    tap = np.arange(count.max())[None]
    inside = tap < count[:, None]
    shares = np.where(inside, shape((tap + first[:, None] - centres[:, None] + 0.5) * (1 / stretch)), 0.0)
    shares /= np.cumsum(shares, axis=1)[:, -1:]
    bits = _bits(float(shares.max()))
    scaled = shares * 2**bits
    return first, count, np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)) / 2**bits


def _bits(largest: float) -> int:
    fits = (bits for bits in range(_MOST_BITS) if int(0.5 + largest * 2 ** (bits + 1)) >= _LARGEST_WEIGHT)
    return next(fits, _MOST_BITS)


def _cubic(distance: Float64[np.ndarray, "*any"]) -> Float64[np.ndarray, "*any"]:
    x, a = np.abs(distance), _SHARPNESS
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    return np.where(x < 1, near, np.where(x < 2, (((x - 5) * x + 8) * x - 4) * a, 0.0))


def _triangle(distance: Float64[np.ndarray, "*any"]) -> Float64[np.ndarray, "*any"]:
    return np.maximum(1.0 - np.abs(distance), 0.0)

"""To which size the Qwen-VL models scale a picture, and the work of encoding it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from preshard.packer_service.ingest.families.settings import Section
from preshard.schemas.errors import ConfigError, DocumentError

MAX_ASPECT_RATIO = 200
"""Longer side over shorter, above which the processors refuse a picture."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelLimits:
    """Least and most pixels of a picture, or of all frames of a video together."""

    least: int
    most: int

    @classmethod
    def of(cls, section: Section, least: int, most: int) -> PixelLimits:
        """From ``size``, or ``min_pixels`` and ``max_pixels`` as older folders name them, which come first."""
        size = section.size({"shortest_edge": least, "longest_edge": most})
        return cls(
            least=section.positive("min_pixels", size["shortest_edge"]),
            most=section.positive("max_pixels", size["longest_edge"]),
        )


def fitted(
    width: int, height: int, limits: PixelLimits, *, factor: int, code: str, frames: int = 1, time_factor: int = 1
) -> tuple[int, int]:
    """Width and height as the nearest multiples of ``factor`` for which the number of pixels is within its limits.

    Above or below the limits both sides are scaled by the same factor and rounded down or up. This is the resizing of
    Qwen2-VL (Wang et al. 2024, section 2.1), with the arithmetic of ``transformers``, where a product that is rounded
    at another point gives another size.

    Args:
        width: of the picture.
        height: of the picture.
        limits: of pixels, over all frames together.
        factor: side of the square of patches that becomes one row, in pixels.
        code: of the error: ``bad_image`` or ``bad_video``.
        frames: of a video whose limits hold for all frames together.
        time_factor: frames that become one patch; the number of frames is rounded to its multiples.

    Raises:
        DocumentError: one side is more than 200 times as long as the other.
    """
    longer, shorter = max(height, width), min(height, width)
    if longer / shorter > MAX_ASPECT_RATIO:
        reason = f"is more than {MAX_ASPECT_RATIO} times as long as it is wide, which the model's processor refuses"
        raise DocumentError(code, f"{width} x {height} {reason}; cut it")
    high, wide = round(height / factor) * factor, round(width / factor) * factor
    pixels = round(frames / time_factor) * time_factor * high * wide
    if pixels > limits.most:
        shrink = math.sqrt((frames * height * width) / limits.most)
        high = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif pixels < limits.least:
        grow = math.sqrt(limits.least / (frames * height * width))
        high = math.ceil(height * grow / factor) * factor
        wide = math.ceil(width * grow / factor) * factor
    return wide, high


def frames_of_patches(n_frames: int, together: int) -> list[range]:
    """The frames that the encoder takes together, by patch of time; the last patch may have fewer."""
    return [range(first, min(first + together, n_frames)) for first in range(0, n_frames, together)]


def window_pairs(height: int, width: int, window: int) -> int:
    """Sum of the squares of the numbers of patches in the windows of a grid, cut off at its lower and right edge."""

    def squares(side: int) -> int:
        whole, rest = divmod(side, window)
        return whole * window**2 + rest**2

    return squares(height) * squares(width)


def one_size(values: Sequence[tuple[str, int]]) -> int:
    """A setting that an image and a video processor must share, since the model has one encoder.

    Args:
        values: the name of the setting with its file, and its value, of each of the two.

    Raises:
        ConfigError: they differ.
    """
    (name, first), (other, second) = values
    if first != second:
        raise ConfigError(f"model: {name} {first} and {other} {second} differ, and the model has one encoder")
    return first

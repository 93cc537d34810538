"""The Qwen-VL models: pictures near their own size and shape, one square of patches a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import (
    CropShape,
    Family,
    Mark,
    Piece,
    Placement,
    Rows,
    Scaling,
    UnitShape,
    encoder_load,
)
from preshard.schemas.errors import DocumentError
from preshard.schemas.manifest import UnitKind, VisionEncoder

MAX_ASPECT_RATIO = 200
"""Longer side over shorter, above which the processors refuse a picture."""

CONTEXT_SHARE = 0.9
"""Share of ``max_video_tokens`` that a video of Qwen2.5-VL may fill, where frames are capped."""

SPARE = 1.05
"""Factor by which the largest number of a frame's pixels exceeds the least, where frames are capped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelLimits:
    """Least and most pixels of a picture, or of all frames of a video together."""

    least: int
    most: int


@dataclass(frozen=True, kw_only=True)
class QwenFamily(Family):
    """Stills; what a video becomes is each model's own.

    Attributes:
        encoder: its dimensions.
        images: limits of a still image's pixels.
        videos: limits of a video's pixels.
        stills: how a still becomes its canvas.
        cap_frames: whether each frame of a video has a limit of its own besides.
        cap_tokens: rows that this limit follows from.
    """

    encoder: VisionEncoder
    images: PixelLimits
    videos: PixelLimits
    stills: Scaling
    cap_frames: bool = False
    cap_tokens: int = 0

    @property
    def factor(self) -> int:
        """Side of the square of pixels that becomes one row."""
        return self.encoder.patch_size[0] * self.merge

    @property
    def together(self) -> int:
        """Frames that one patch covers."""
        return self.encoder.temporal_patch_size

    def image(self, width: int, height: int) -> Placement:
        """The whole image near its own size and shape, as one unit."""
        size = fit_size(width, height, self.images, factor=self.factor, code="bad_image")
        unit = self._unit("image", size, [None], 1.0)
        return Placement(pieces=(Rows(0, unit.rows, self.image_token),), units=(unit,), scaling=self.stills)

    def within(self, medium: Medium) -> Family:
        """The family with the limits that the row gives instead of those of the folder."""
        if medium.min_pixels is None and medium.max_pixels is None:
            return self
        own = self.images if medium.kind == "image" else self.videos
        limits = PixelLimits(least=medium.min_pixels or own.least, most=medium.max_pixels or own.most)
        return replace(self, images=limits) if medium.kind == "image" else replace(self, videos=limits)

    def check_frames(self, n_frames: int) -> None:
        """Refuses a video of fewer frames than one patch covers, as most video processors do.

        Raises:
            DocumentError: ``bad_video``.
        """
        if n_frames < self.together:
            raise DocumentError(
                "bad_video",
                f"shows {n_frames} frame, and the model's processor refuses fewer than {self.together}; raise "
                "video.fps, or give the frame as an image",
            )

    def _unit(self, kind: UnitKind, size: tuple[int, int], frames: Sequence[int | None], time_step: float) -> UnitShape:
        """A unit of pictures of this size."""
        (width, height), patch, window = size, self.encoder.patch_size[0], self.encoder.window_size
        high, wide = height // patch, width // patch
        rows = high * wide // self.merge**2
        return UnitShape(
            kind=kind,
            grid=(1, high, wide),
            patches=high * wide,
            rows=rows,
            load=encoder_load(self.encoder, [high * wide], rows, _window_pairs(high, wide, window) if window else 0),
            crops=tuple(CropShape.whole(width, height, frame) for frame in frames),
            time_step=time_step if self.axes > 1 else 0.0,
        )

    def _frames_of_patches(self, n_frames: int) -> list[range]:
        """The frames that the encoder takes together, by patch of time; the last patch may have fewer."""
        together = self.together
        return [range(first, min(first + together, n_frames)) for first in range(0, n_frames, together)]


@dataclass(frozen=True, kw_only=True)
class Qwen25VLFamily(QwenFamily):
    """A video is one run of rows.

    Attributes:
        tokens_per_second: growth of the temporal position in one second of video, where there is one.
    """

    tokens_per_second: int

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:
        """All frames in one size, near their own as long as each is within its limits."""
        n_frames, limits = len(timestamps), self.videos
        if self.cap_frames:
            whole = int(self.cap_tokens * self.factor**2 * CONTEXT_SHARE)
            most = max(min(limits.most, whole * self.together // n_frames), int(limits.least * SPARE))
            limits = PixelLimits(least=limits.least, most=most)
        size = fit_size(width, height, limits, factor=self.factor, code="bad_video")
        step = self._time_step(timestamps)
        units = [self._unit("frames", size, frames, step) for frames in self._frames_of_patches(n_frames)]
        pieces = tuple(Rows(number, unit.rows, self.video_token) for number, unit in enumerate(units))
        return Placement(pieces=pieces, units=tuple(units), scaling="bicubic_16_bits")

    def _time_step(self, timestamps: Sequence[float]) -> float:
        """Positions from one patch of frames to the next, by the mean time between frames."""
        if timestamps[-1] <= timestamps[0]:
            return 1.0
        rate = (len(timestamps) - 1) / (timestamps[-1] - timestamps[0])
        return float(np.float32(self.tokens_per_second) * np.float32(self.together / rate))


@dataclass(frozen=True, kw_only=True)
class Qwen3VLFamily(QwenFamily):
    """``<0.3 seconds>``, the opening mark, the rows of two frames and the closing mark, for each pair of frames."""

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:
        """All frames in one size, near their own as long as the whole video is within its limits."""
        size = self._size(width, height, len(timestamps))
        pieces: list[Piece] = []
        units = []
        for number, frames in enumerate(self._frames_of_patches(len(timestamps))):
            unit = self._unit("frames", size, frames, 1.0)
            # A patch that lacks a frame shows its last one again, so both are at the same time.
            middle = (timestamps[frames[0]] + timestamps[frames[-1]]) / 2
            pieces += [f"<{middle:.1f} seconds>", Mark(number, self.opening)]
            pieces += [Rows(number, unit.rows, self.video_token), Mark(number, self.closing)]
            units.append(unit)
        return Placement(pieces=tuple(pieces), units=tuple(units), scaling="bicubic_16_bits")

    def within(self, medium: Medium) -> Family:
        """The family with the row's limits for images only: the processor limits all frames of a video together."""
        given = [name for name in ("min_pixels", "max_pixels") if getattr(medium, name) is not None]
        if given and medium.kind == "video":
            raise DocumentError(
                "bad_row",
                f"{given[0]} of a video is not followed for {self.model_type}, whose processor limits all frames "
                "together; leave it out, or set size in the model folder's video processor",
            )
        return super().within(medium)

    def _size(self, width: int, height: int, n_frames: int) -> tuple[int, int]:
        self.check_frames(n_frames)
        limits, factor = self.videos, self.factor
        if self.cap_frames:
            of_frame = max(min(self.cap_tokens * factor**2, limits.most // n_frames), int(limits.least * SPARE))
            limits = PixelLimits(least=limits.least, most=of_frame * n_frames)
        return fit_frames(
            width, height, limits, factor=factor, code="bad_video", frames=n_frames, time_factor=self.together
        )


def fit_frames(
    width: int, height: int, limits: PixelLimits, *, factor: int, code: str, frames: int, time_factor: int
) -> tuple[int, int]:
    """:func:`fit_size` of frames that are enlarged first if a side is shorter than ``factor``."""
    if min(width, height) < factor:
        grow = max(factor / height, factor / width)
        width, height = int(width * grow), int(height * grow)
    return fit_size(width, height, limits, factor=factor, code=code, frames=frames, time_factor=time_factor)


def fit_size(
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


def _window_pairs(height: int, width: int, window: int) -> int:
    """Sum of the squares of the numbers of patches in the windows of a grid, cut off at its lower and right edge."""

    def squares(side: int) -> int:
        whole, rest = divmod(side, window)
        return whole * window**2 + rest**2

    return squares(height) * squares(width)

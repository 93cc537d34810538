"""Qwen2.5-VL: a video is one run of rows, and its temporal positions grow with the time between frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from preshard.packer_service.ingest.families.family import Placement, Rows
from preshard.packer_service.ingest.families.qwen import QwenFamily, encoder, input_settings, read_geometry
from preshard.packer_service.ingest.families.qwen_sizes import PixelLimits, fitted, frames_of_patches
from preshard.packer_service.ingest.families.settings import CLIP, ModelFolder
from preshard.schemas.config import ImageBackend
from preshard.schemas.encoder import TIME_KEY

VIDEO_LIMITS = PixelLimits(least=128 * 28 * 28, most=28 * 28 * 768)
"""The video processor's own, for each frame."""

CONTEXT_SHARE = 0.9
"""Share of ``max_video_tokens`` that a video may fill, where frames are capped."""

SPARE = 1.05
"""By how much a frame's largest number of pixels stays above its least, where frames are capped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Qwen25VLFamily(QwenFamily):
    """``tokens_per_second`` is the growth of the temporal position in one second of video."""

    limits_frames: ClassVar[bool] = True
    tokens_per_second: int

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:
        """All frames in one size, near their own as long as each is within its limits."""
        geometry, n_frames = self.geometry, len(timestamps)
        limits = geometry.videos
        if geometry.cap_frames:
            whole = int(geometry.cap_tokens * geometry.factor**2 * CONTEXT_SHARE)
            most = max(min(limits.most, whole * geometry.together // n_frames), int(limits.least * SPARE))
            limits = PixelLimits(least=limits.least, most=most)
        size = fitted(width, height, limits, factor=geometry.factor, code="bad_video")
        step = self._time_step(timestamps)
        units = [geometry.unit("frames", size, frames, step) for frames in self._patches(n_frames)]
        pieces = tuple(Rows(number, unit.rows, self.video_token) for number, unit in enumerate(units))
        return Placement(pieces=pieces, units=tuple(units), scaling="bicubic_16_bits")

    def _patches(self, n_frames: int) -> list[range]:
        return frames_of_patches(n_frames, self.geometry.together)

    def _time_step(self, timestamps: Sequence[float]) -> float:
        """Positions from one patch of frames to the next, by the mean time between frames."""
        if timestamps[-1] <= timestamps[0]:
            return 1.0
        rate = (len(timestamps) - 1) / (timestamps[-1] - timestamps[0])
        return float(np.float32(self.tokens_per_second) * np.float32(self.geometry.together / rate))


def read_qwen2_5_vl(folder: ModelFolder, backend: ImageBackend) -> Qwen25VLFamily:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, or a setting is not followed.
    """
    image = folder.image_processor(("Qwen2VLImageProcessor",))
    video = folder.video_processor(("Qwen2VLVideoProcessor", "Qwen2VLImageProcessor"))
    geometry = read_geometry(folder, image, video, patch=14, videos=VIDEO_LIMITS, cap_tokens=128000)
    per_second = encoder(folder)[TIME_KEY]
    settings = {**input_settings(geometry, image, video, CLIP, backend), TIME_KEY: per_second}
    for section in (image, video, folder.processor()):
        section.finish()
    return Qwen25VLFamily(
        model_type=folder.model_type,
        geometry=geometry,
        image_token=folder.named_token("image_token", "<|image_pad|>"),
        video_token=folder.named_token("video_token", "<|video_pad|>"),
        opening="<|vision_start|>",
        closing="<|vision_end|>",
        settings=settings,
        tokens_per_second=per_second,
    )

"""Qwen3-VL and its mixture of experts: every pair of frames of a video stands after its time, between marks."""

from __future__ import annotations

from collections.abc import Sequence

from preshard.packer_service.ingest.families.family import Mark, Piece, Placement, Rows
from preshard.packer_service.ingest.families.qwen import QwenFamily, input_settings, read_geometry
from preshard.packer_service.ingest.families.qwen_sizes import PixelLimits, fitted, frames_of_patches
from preshard.packer_service.ingest.families.settings import HALVES, ModelFolder
from preshard.schemas.config import ImageBackend
from preshard.schemas.errors import DocumentError

VIDEO_LIMITS = PixelLimits(least=128 * 32 * 32, most=32 * 32 * 768)
"""The video processor's own, over all frames together."""

SPARE = 1.05
"""By how much the least limit of a frame's pixels lies above that of a video, where frames have one of their own."""


class Qwen3VLFamily(QwenFamily):
    """``<0.3 seconds>``, the opening mark, the rows of two frames and the closing mark, for each pair of frames."""

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:
        """All frames in one size, near their own as long as the whole video is within its limits."""
        size = self._size(width, height, len(timestamps))
        pieces: list[Piece] = []
        units = []
        for number, frames in enumerate(frames_of_patches(len(timestamps), self.geometry.together)):
            unit = self.geometry.unit("frames", size, frames, 1.0)
            # A patch that lacks a frame shows its last one again, so both are at the same time.
            middle = (timestamps[frames[0]] + timestamps[frames[-1]]) / 2
            pieces += [f"<{middle:.1f} seconds>", Mark(number, self.opening)]
            pieces += [Rows(number, unit.rows, self.video_token), Mark(number, self.closing)]
            units.append(unit)
        return Placement(pieces=tuple(pieces), units=tuple(units), scaling="bicubic_16_bits")

    def _size(self, width: int, height: int, n_frames: int) -> tuple[int, int]:
        geometry = self.geometry
        if n_frames < geometry.together:
            raise DocumentError(
                "bad_video",
                f"shows {n_frames} frame, and the model's processor refuses less than {geometry.together}; raise "
                "video.fps, or give the frame as an image",
            )
        limits, factor = geometry.videos, geometry.factor
        if geometry.cap_frames:
            of_frame = max(min(geometry.cap_tokens * factor**2, limits.most // n_frames), int(limits.least * SPARE))
            limits = PixelLimits(least=limits.least, most=of_frame * n_frames)
        if min(width, height) < factor:
            grow = max(factor / height, factor / width)
            width, height = int(width * grow), int(height * grow)
        return fitted(
            width, height, limits, factor=factor, code="bad_video", frames=n_frames, time_factor=geometry.together
        )


def read_qwen3_vl(folder: ModelFolder, backend: ImageBackend) -> Qwen3VLFamily:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, or a setting is not followed.
    """
    image = folder.image_processor(("Qwen2VLImageProcessor",))
    video = folder.video_processor(("Qwen3VLVideoProcessor",))
    geometry = read_geometry(folder, image, video, patch=16, videos=VIDEO_LIMITS, cap_tokens=768)
    settings = input_settings(geometry, image, video, HALVES, backend)
    for section in (image, video, folder.processor()):
        section.finish()
    return Qwen3VLFamily(
        model_type=folder.model_type,
        geometry=geometry,
        image_token=folder.named_token("image_token", "<|image_pad|>"),
        video_token=folder.named_token("video_token", "<|video_pad|>"),
        opening=folder.named_token("vision_start_token", "<|vision_start|>"),
        closing=folder.named_token("vision_end_token", "<|vision_end|>"),
        settings=settings,
    )

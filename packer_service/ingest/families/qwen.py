"""What the Qwen-VL models have in common: sizes in patches, stills, and what rebuilds their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from preshard.packer_service.ingest.document import MediumKind
from preshard.packer_service.ingest.families.family import CropShape, Placement, Rows, UnitShape
from preshard.packer_service.ingest.families.qwen_sizes import PixelLimits, fitted, one_size, window_pairs
from preshard.packer_service.ingest.families.settings import (
    BACKEND_KEY,
    BICUBIC,
    BICUBIC_OF,
    CLIP,
    STEPS,
    Colours,
    ModelFolder,
    Section,
)
from preshard.packer_service.ingest.families.work import EncoderWork
from preshard.schemas.config import ImageBackend
from preshard.schemas.encoder import ENCODER_KEY
from preshard.schemas.manifest import UnitKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """How pictures become patches and rows.

    Attributes:
        patch: side of a patch in pixels.
        together: frames that one patch covers.
        merge: patches along the side of the square that becomes one row.
        images: limits of a still image's pixels.
        videos: limits of a video's pixels.
        cap_frames: whether each frame of a video has a limit of its own besides.
        cap_tokens: rows that this limit follows from.
        work: the encoder's dimensions.
        window: side of the encoder's window in patches, 0 if every layer attends to the whole grid.
    """

    patch: int
    together: int
    merge: int
    images: PixelLimits
    videos: PixelLimits
    cap_frames: bool
    cap_tokens: int
    work: EncoderWork
    window: int = 0

    @property
    def factor(self) -> int:
        """Side of the square of pixels that becomes one row."""
        return self.patch * self.merge

    def unit(self, kind: UnitKind, size: tuple[int, int], frames: Sequence[int | None], time_step: float) -> UnitShape:
        """A unit of pictures of this size."""
        width, height = size
        high, wide = height // self.patch, width // self.patch
        rows = high * wide // self.merge**2
        load = self.work.load([high * wide], rows, window_pairs(high, wide, self.window) if self.window else 0)
        return UnitShape(
            kind=kind,
            grid=(1, high, wide),
            patches=high * wide,
            rows=rows,
            load=load,
            crops=tuple(CropShape.whole(width, height, frame) for frame in frames),
            time_step=time_step,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class QwenFamily:
    """Tokens and stills; what a video becomes is each model's own.

    ``limits_frames`` says whether its limits of pixels hold for each frame of a video.
    """

    limits_frames: ClassVar[bool] = False

    model_type: str
    geometry: Geometry
    image_token: str
    video_token: str
    opening: str
    closing: str
    settings: Mapping[str, Any]
    axes: Literal[3] = 3
    prefix: str = ""
    group_tokens: tuple[str, ...] = ()

    @property
    def merge(self) -> int:
        """Patches along the side of the square that becomes one row."""
        return self.geometry.merge

    @property
    def row_tokens(self) -> tuple[str, ...]:
        """One for stills and one for videos."""
        return (self.image_token, self.video_token)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Every special token that it writes."""
        return (self.image_token, self.video_token, self.opening, self.closing)

    def placeholder(self, kind: MediumKind) -> str:
        """The token of a row stands once for the whole image or video."""
        return self.image_token if kind == "image" else self.video_token

    def alone(self, kind: MediumKind) -> str:
        """Between the marks that chat templates write."""
        return f"{self.opening}{self.placeholder(kind)}{self.closing}"

    def check(self, kinds: Sequence[MediumKind]) -> None:
        """Images and videos may stand beside each other in any number."""

    def image(self, width: int, height: int) -> Placement:
        """The whole image near its own size and shape, as one unit."""
        geometry = self.geometry
        size = fitted(width, height, geometry.images, factor=geometry.factor, code="bad_image")
        unit = geometry.unit("image", size, [None], 1.0)
        pieces = (Rows(0, unit.rows, self.image_token),)
        return Placement(pieces=pieces, units=(unit,), scaling=BICUBIC_OF[self.settings[BACKEND_KEY]])


def read_geometry(
    folder: ModelFolder, image: Section, video: Section, *, patch: int, videos: PixelLimits, cap_tokens: int
) -> Geometry:
    """The settings of both processors, which must agree with each other and with the encoder.

    Args:
        folder: the model folder.
        image: its image processor.
        video: its video processor.
        patch: the processors' own size of a patch.
        videos: the video processor's own limits.
        cap_tokens: the video processor's own ``max_video_tokens``.

    Raises:
        ConfigError: a setting is not followed, or two disagree.
    """
    sizes = {}
    for name, default in (("patch_size", patch), ("temporal_patch_size", 2), ("merge_size", 2)):
        own = [(f"{name} of {section.where}", section.positive(name, default)) for section in (image, video)]
        sizes[name] = one_size(own)
    images = PixelLimits.of(image, 56 * 56, 28 * 28 * 1280)
    videos = PixelLimits.of(video, videos.least, videos.most)
    cap_frames = bool(video.take("cap_pixels_per_frame", False))
    cap_tokens = video.positive("max_video_tokens", cap_tokens)
    for section in (image, video):
        section.fixed({**STEPS, "resample": BICUBIC})
    work, window = _read_work(folder, image, sizes)
    return Geometry(
        patch=sizes["patch_size"],
        together=sizes["temporal_patch_size"],
        merge=sizes["merge_size"],
        images=images,
        videos=videos,
        cap_frames=cap_frames,
        cap_tokens=cap_tokens,
        work=work,
        window=window,
    )


ENCODERS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        **{"depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "out_hidden_size": 3584, "window_size": 112},
        **{"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2},
        **{"fullatt_block_indexes": (7, 15, 23, 31), "tokens_per_second": 4},
    },
    "qwen3_vl": {
        **{"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 3584},
        **{"patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2},
        "deepstack_visual_indexes": (8, 16, 24),
    },
}
"""Values of the encoders' classes for keys that a ``config.json`` leaves out."""


def encoder(folder: ModelFolder) -> dict[str, Any]:
    """The encoder's dimensions."""
    return folder.vision(ENCODERS[folder.model_type.removesuffix("_moe")])


def _read_work(folder: ModelFolder, section: Section, sizes: Mapping[str, int]) -> tuple[EncoderWork, int]:
    vision = encoder(folder)
    for name, key in (
        ("patch_size", "patch_size"),
        ("temporal_patch_size", "temporal_patch_size"),
        ("merge_size", "spatial_merge_size"),
    ):
        folder.agree(section, name, sizes[name], vision[key])
    merged = vision["hidden_size"] * sizes["merge_size"] ** 2
    full = len(vision["fullatt_block_indexes"]) if "window_size" in vision else vision["depth"]
    mergers = 1 + len(vision.get("deepstack_visual_indexes", ()))
    work = EncoderWork(
        width=vision["hidden_size"],
        inner=vision["intermediate_size"],
        matrices=3 if "window_size" in vision else 2,
        layers=full,
        windowed_layers=vision["depth"] - full,
        patch_inputs=3 * sizes["temporal_patch_size"] * sizes["patch_size"] ** 2,
        row_inputs=mergers * merged,
        row_inner=merged,
        row_outputs=mergers * vision["out_hidden_size"],
    )
    window = vision["window_size"] // sizes["patch_size"] if "window_size" in vision else 0
    return work, window


def input_settings(
    geometry: Geometry, image: Section, video: Section, video_colours: Colours, backend: ImageBackend
) -> dict[str, Any]:
    """What a reader needs to rebuild ``pixel_values`` and ``pixel_values_videos``, and the encoder."""
    mean, deviation = CLIP
    video_mean, video_deviation = video_colours
    return {
        "inputs": "qwen_vl",
        ENCODER_KEY: geometry.work.entry(
            patch=(geometry.patch, geometry.patch), together=geometry.together, window=geometry.window
        ),
        "patch_size": geometry.patch,
        "temporal_patch_size": geometry.together,
        "merge_size": geometry.merge,
        BACKEND_KEY: backend,
        "image_mean": image.numbers("image_mean", mean),
        "image_std": image.numbers("image_std", deviation),
        "video_mean": video.numbers("image_mean", video_mean),
        "video_std": video.numbers("image_std", video_deviation),
    }

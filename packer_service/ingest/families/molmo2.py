"""Molmo2: overlapping crops and the whole image at low resolution; its image tokens all see each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from preshard.packer_service.ingest.document import MediumKind
from preshard.packer_service.ingest.families import tiny
from preshard.packer_service.ingest.families.family import (
    CropShape,
    Family,
    Mark,
    Piece,
    Placement,
    Rows,
    UnitShape,
    encoder_load,
)
from preshard.packer_service.ingest.families.settings import (
    CONFIG,
    HALVES,
    IMAGE_PROCESSOR,
    PROCESSOR,
    STEPS,
    VIDEO_PROCESSOR,
    ModelFolder,
    Section,
)
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.manifest import VisionEncoder
from preshard.schemas.model.encoders import molmo_encoder
from preshard.schemas.sections import ImageBackend

ROW, COLUMN, START, LOW_START, END = "<im_patch>", "<im_col>", "<im_start>", "<low_res_im_start>", "<im_end>"
FRAME_START, FRAME_END, LOW = "<frame_start>", "<frame_end>", "<im_low>"
GROUP = (ROW, COLUMN, START, LOW_START, FRAME_START, END, FRAME_END, LOW)
"""Tokens that see each other in both directions."""

NEVER_NEAREST = np.float32(10e9)
"""Stands for a scale at which an image would be made smaller, where another tiling need not."""


BILINEAR = 2
"""Pillow's number of the filter that the processors name; they scale without one, between four pixels."""

SMALLEST_SIDE = 65
"""Torch has another kernel, with other roundings, for pictures whose width and height add up to at most 128."""

ENCODER: dict[str, Any] = {
    **{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 25},
    **{"image_size": (378, 378), "patch_size": 14},
}
ADAPTER: dict[str, Any] = {
    **{"hidden_size": 1152, "intermediate_size": 18944, "text_hidden_size": 3584},
    "vision_feature_layer": (24, 18),
}
"""Values of the classes for keys that a ``config.json`` leaves out."""

VIDEO_STEPS = {"do_rescale": False, "do_normalize": False}
"""Steps that the video processor leaves out unless its file asks for them, as those of the published models do."""

IMAGE_POOLING, VIDEO_POOLING = (2, 2), (3, 3)
"""The processors' own windows of patches that become one row, along height and width."""


@dataclass(frozen=True, kw_only=True)
class Molmo2Family(Family):
    """A still image is one unit of all its crops, with its columns marked; each frame of a video is a unit.

    Attributes:
        side: of a crop, in pixels.
        margins: patches at the left and right (upper and lower) side of a crop that its neighbour shows as well.
    """

    side: int
    patch: int
    most_crops: int
    margins: tuple[int, int]
    image_pooling: tuple[int, int]
    video_pooling: tuple[int, int]
    columns: bool
    low_columns: bool
    video_columns: bool
    low_start: str
    frame_marks: tuple[str, str]
    encoder: VisionEncoder
    group_tokens: tuple[str, ...] = GROUP
    row_tokens: tuple[str, ...] = (ROW,)

    def check(self, kinds: Sequence[MediumKind]) -> None:
        """The model takes images or one video.

        Raises:
            DocumentError: ``bad_row``.
        """
        if "video" in kinds and len(kinds) > 1:
            raise DocumentError(
                "bad_row", f"shows {len(kinds)} images and videos, and molmo2 takes images or one video"
            )

    def image(self, width: int, height: int) -> Placement:
        """The whole image as one crop, and overlapping crops in reading order."""
        rows, cols = self.tiling(width, height)
        step = self._window * self.patch
        high, wide = (side * step + sum(self.margins) * self.patch for side in (rows, cols))
        tiles = (
            CropShape(canvas=(wide, high), box=(col * step, row * step, col * step + self.side, row * step + self.side))
            for row in range(rows)
            for col in range(cols)
        )
        crops = (CropShape.whole(self.side, self.side), *tiles)
        grid = (high // self.patch, wide // self.patch)
        whole, parts = self._pooled(self._grid, self.image_pooling), self._pooled(grid, self.image_pooling)
        pieces = [
            *_in_rows(0, whole, (self.low_start, END), self.low_columns),
            *_in_rows(0, parts, (START, END), self.columns),
        ]
        unit = self._unit("image", crops, (1, *grid), whole[0] * whole[1] + parts[0] * parts[1])
        return Placement(pieces=tuple(pieces), units=(unit,), scaling="bilinear")

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:  # noqa: ARG002
        """Its time before each frame, which is one crop."""
        pieces: list[Piece] = []
        units = []
        pooled = self._pooled(self._grid, self.video_pooling)
        for frame, timestamp in enumerate(timestamps):
            pieces.append(f"{' ' if frame else ''}{timestamp:.1f} ")
            pieces += _in_rows(frame, pooled, self.frame_marks, self.video_columns)
            crop = CropShape.whole(self.side, self.side, frame)
            units.append(self._unit("frame", (crop,), (1, *self._grid), pooled[0] * pooled[1]))
        return Placement(pieces=tuple(pieces), units=tuple(units), scaling="bilinear")

    def tiling(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of crops for which the image is enlarged least, or shrunk least if it must be (Deitke et
        al. 2024, Molmo, section 3). Scales are float32, as in the model's processor."""
        most = self.most_crops
        tilings = [(high, wide) for high in range(1, most + 1) for wide in range(1, most + 1) if high * wide <= most]
        tilings.sort(key=lambda tiling: (tiling[0] * tiling[1], tiling[0]))
        margin = sum(self.margins) * self.patch
        own = np.array([height - margin, width - margin], np.float32)
        with np.errstate(divide="ignore"):
            scales = ((np.array(tilings, np.float32) * np.float32(self._window * self.patch)) / own).min(axis=1)
        if (scales < 1).all():
            return tilings[int(scales.argmax())]
        return tilings[int(np.where(scales < 1, NEVER_NEAREST, scales).argmin())]

    @property
    def _grid(self) -> tuple[int, int]:
        """Patches of a crop along height and width."""
        return self.side // self.patch, self.side // self.patch

    @property
    def _window(self) -> int:
        """Patches from one crop to the next."""
        return self.side // self.patch - sum(self.margins)

    @staticmethod
    def _pooled(grid: tuple[int, int], pooling: tuple[int, int]) -> tuple[int, int]:
        return -(-grid[0] // pooling[0]), -(-grid[1] // pooling[1])

    def _unit(
        self, kind: Literal["image", "frame"], crops: tuple[CropShape, ...], grid: tuple[int, int, int], rows: int
    ) -> UnitShape:
        per_crop = self._grid[0] * self._grid[1]
        load = encoder_load(self.encoder, [per_crop] * len(crops), rows)
        patches = per_crop * len(crops)
        return UnitShape(kind=kind, grid=grid, patches=patches, rows=rows, load=load, crops=crops, time_step=0.0)


def _in_rows(unit: int, pooled: tuple[int, int], marks: tuple[str, str], columns: bool) -> list[Piece]:
    """The rows of a grid between two marks, with a mark after each line if columns are marked."""
    height, width = pooled
    inside: list[Piece] = [Rows(unit, height * width, ROW)]
    if columns:
        inside = [piece for _ in range(height) for piece in (Rows(unit, width, ROW), Mark(unit, COLUMN))]
    return [Mark(unit, marks[0]), *inside, Mark(unit, marks[1])]


def read_family(folder: ModelFolder, backend: ImageBackend) -> Molmo2Family:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, a setting is not followed, or another backend is asked for than there is.
    """
    if backend != "torchvision":
        raise ConfigError(
            f"images.backend: {backend!r} is not available: molmo2 has only a torchvision processor; omit the key"
        )
    image = folder.image_processor(("Molmo2ImageProcessor",))
    video = folder.video_processor(("Molmo2VideoProcessor",))
    processor = folder.processor()
    side, patch = _crop(folder, image)
    if _crop(folder, video) != (side, patch):
        raise ConfigError(f"model: size or patch_size of {video.where} differs from that of {image.where}")
    margins = _pair(image, "overlap_margins", (4, 4))
    if sum(margins) >= side // patch:
        raise ConfigError(f"model: overlap_margins {list(margins)} of {image.where} leave nothing of {side // patch}")
    image_pooling = _pair(image, "pooling_size", IMAGE_POOLING)
    video_pooling = _pair(video, "pooling_size", VIDEO_POOLING)
    most_crops = image.positive("max_crops", 8)
    encoder = molmo_encoder(_vision(folder), folder.vision(ADAPTER, "adapter_config"))
    settings = {
        **{"inputs": "molmo2", "side": side, "patch_size": patch, "overlap_margins": list(margins)},
        **{"image_pooling": list(image_pooling), "video_pooling": list(video_pooling)},
        **folder.inputs(encoder, backend, (image, video), (HALVES, HALVES)),
    }
    image.fixed({**STEPS, "resample": BILINEAR})
    video.fixed({**STEPS, "resample": BILINEAR}, VIDEO_STEPS)
    columns = bool(processor.take("image_use_col_tokens", True))
    image_token = folder.named_token("image_token", "<|image|>")
    video_token = folder.named_token("video_token", "<|video|>")
    family = Molmo2Family(
        model_type=folder.model_type,
        image_token=image_token,
        video_token=video_token,
        tokens=(*GROUP, image_token, video_token),
        side=side,
        patch=patch,
        most_crops=most_crops,
        margins=margins,
        image_pooling=image_pooling,
        video_pooling=video_pooling,
        columns=columns,
        low_columns=bool(processor.take("use_single_crop_col_tokens", columns)),
        video_columns=bool(processor.take("video_use_col_tokens", False)),
        low_start=LOW_START if processor.take("use_single_crop_start_token", True) else START,
        frame_marks=(FRAME_START, FRAME_END) if processor.take("use_frame_special_tokens", True) else (START, END),
        encoder=encoder,
        prefix=folder.named_token("bos_token", "") or folder.named_token("eos_token", ""),
        settings=settings,
    )
    for section in (image, video, processor):
        section.finish()
    return family


def _vision(folder: ModelFolder) -> dict[str, Any]:
    """The encoder's dimensions; published folders have them under older names."""
    names = {"image_default_input_size": "image_size", "image_patch_size": "patch_size"}
    older = folder.config.get("vit_config")
    if folder.config.get("vision_config") is None and isinstance(older, dict):
        folder.config["vision_config"] = {names.get(key, key): value for key, value in older.items()}
    return folder.vision(ENCODER)


def _crop(folder: ModelFolder, section: Section) -> tuple[int, int]:
    size = section.size({"height": 378, "width": 378})
    patch = section.positive("patch_size", 14)
    vision = _vision(folder)
    folder.agree(section, "size", [size["height"], size["width"]], list(vision["image_size"]))
    folder.agree(section, "patch_size", patch, vision["patch_size"])
    if size["height"] < SMALLEST_SIDE:
        raise ConfigError(
            f"model: size {size['height']} of {section.where} is not followed, only {SMALLEST_SIDE} pixels and more: "
            "torch interpolates smaller crops in another way"
        )
    if size["height"] != size["width"] or size["height"] % patch:
        raise ConfigError(f"model: size {size} of {section.where} is not a square of whole patches of {patch}")
    return size["height"], patch


def _pair(section: Section, name: str, default: tuple[int, int]) -> tuple[int, int]:
    value = section.take(name, list(default))
    if len(value) != 2 or not all(isinstance(side, int) and side >= (name == "pooling_size") for side in value):
        raise ConfigError(f"model: {name} of {section.where} is {value!r}; two whole numbers are legal")
    return int(value[0]), int(value[1])


def _tiny_config(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    names = {
        **{"image_start_token_id": "<im_start>", "low_res_image_start_token_id": "<low_res_im_start>"},
        **{"image_end_token_id": "<im_end>", "image_patch_id": "<im_patch>"},
        **{"frame_start_token_id": "<frame_start>", "frame_end_token_id": "<frame_end>"},
    }
    heads = {"num_attention_heads": tiny.VISION_HEADS, "num_key_value_heads": tiny.VISION_HEADS}
    heads["head_dim"] = tiny.VISION_WIDTH // tiny.VISION_HEADS
    return {
        **{"model_type": "molmo2", "architectures": ["Molmo2ForConditionalGeneration"]},
        **{name: ids[mark] for name, mark in names.items()},
        "text_config": {"model_type": "molmo2_text", **text, "rope_parameters": tiny.ROPE, "additional_vocab_size": 0},
        "vision_config": {
            **{"model_type": "molmo2_vision", **tiny.VISION, **heads, "image_size": [112, 112], "patch_size": 14},
        },
        "adapter_config": {
            **{
                "model_type": "molmo2_adapter",
                "vision_feature_layer": [1, 0],
                "hidden_size": tiny.VISION_WIDTH,
                **heads,
            },
            **{"intermediate_size": 2 * tiny.WIDTH, "text_hidden_size": tiny.WIDTH},
        },
    }


TINY = {
    "molmo2": tiny.TinyModel(
        marks=(
            *(
                *tiny.MARKS[:3],
                "<im_start>",
                "<im_end>",
                "<im_patch>",
                "<im_col>",
                "<low_res_im_start>",
                "<|image|>",
            ),
            *("<im_low>", "<frame_start>", "<frame_end>", "<|video|>"),
        ),
        config=_tiny_config,
        placeholders=("<|image|>", "<|video|>"),
        processors={
            IMAGE_PROCESSOR: {
                **tiny.part("image", "Molmo2ImageProcessor", "Molmo2Processor", tiny.HALVES),
                **{"size": {"height": 112, "width": 112}, "patch_size": 14, "max_crops": 8, "overlap_margins": [1, 1]},
                "pooling_size": [2, 2],
            },
            VIDEO_PROCESSOR: {
                **tiny.part("video", "Molmo2VideoProcessor", "Molmo2Processor", tiny.HALVES),
                **{"size": {"height": 112, "width": 112}, "patch_size": 14, "pooling_size": [3, 3]},
                **{"do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True},
            },
            PROCESSOR: {"processor_class": "Molmo2Processor"},
        },
        published={
            CONFIG: {"vision_config": {"image_size": [378, 378]}},
            IMAGE_PROCESSOR: {"size": {"height": 378, "width": 378}, "overlap_margins": [4, 4]},
            VIDEO_PROCESSOR: {"size": {"height": 378, "width": 378}},
        },
    )
}

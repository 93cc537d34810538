"""Gemma 3: an image is one square of fixed size, whose rows see each other; no videos."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from preshard.packer_service.ingest.families import tiny
from preshard.packer_service.ingest.families.family import (
    CropShape,
    Family,
    Mark,
    Placement,
    Rows,
    Scaling,
    UnitShape,
    encoder_load,
)
from preshard.packer_service.ingest.families.settings import (
    CONFIG,
    HALVES,
    IMAGE_PROCESSOR,
    PROCESSOR,
    STEPS,
    ModelFolder,
    Section,
)
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import VisionEncoder
from preshard.schemas.model.encoders import mean_encoder
from preshard.schemas.sections import ImageBackend

BILINEAR = 2
"""Pillow's number of the filter that the processors scale with."""

BILINEAR_OF: dict[ImageBackend, Scaling] = {"torchvision": "triangle_16_bits", "pil": "triangle"}
"""The bilinear filter, as it is in each backend of image processors."""

ENCODER: dict[str, Any] = {
    **{"model_type": "siglip_vision_model", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    **{"image_size": 224, "patch_size": 16},
}
"""Values of the encoder's class for keys that a ``config.json`` leaves out."""

PAN_AND_SCAN = ("pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate")
"""Settings without effect as long as ``do_pan_and_scan`` is off."""


@dataclass(frozen=True, kw_only=True)
class Gemma3Family(Family):
    """A still image is one crop between marks, on lines of their own.

    Attributes:
        side: of a crop in pixels.
        grid: patches of a crop along each side.
        rows: of a crop.
        row, end: the token that rows fill, and the mark after them; a chat template writes the mark before.
        stills: how a still becomes its crop.
    """

    side: int
    grid: int
    rows: int
    row: str
    end: str
    encoder: VisionEncoder
    stills: Scaling
    bidirectional: Literal["", "within_image"] = "within_image"

    def image(self, width: int, height: int) -> Placement:  # noqa: ARG002
        """The whole image as one square, whatever its shape."""
        patches = self.grid**2
        unit = UnitShape(
            kind="image",
            grid=(1, self.grid, self.grid),
            patches=patches,
            rows=self.rows,
            load=encoder_load(self.encoder, [patches], self.rows),
            crops=(CropShape.whole(self.side, self.side),),
            time_step=0.0,
        )
        pieces = ("\n\n", Mark(0, self.image_token), Rows(0, self.rows, self.row), Mark(0, self.end), "\n\n")
        return Placement(pieces=pieces, units=(unit,), scaling=self.stills)


def read_family(folder: ModelFolder, backend: ImageBackend) -> Gemma3Family:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, or a setting is not followed.
    """
    image, processor = folder.image_processor(("Gemma3ImageProcessor",)), folder.processor()
    vision = folder.vision(ENCODER)
    side = _side(folder, image, vision)
    rows = processor.positive("image_seq_length", 256)
    grid = side // vision["patch_size"]
    pooling = _pooling(folder, grid, rows)
    encoder = mean_encoder(vision, mlp_matrices=2, text=text_width(folder))
    settings = {
        **{"inputs": "gemma3", "pooling": pooling},
        **folder.inputs(encoder, backend, (image, image), (HALVES, HALVES)),
    }
    image.fixed({**STEPS, "resample": BILINEAR, "do_pan_and_scan": False})
    for name in PAN_AND_SCAN:
        image.take(name, None)
    for section in (image, processor):
        section.finish()
    start = folder.named_token("boi_token", "<start_of_image>")
    row, end = (
        folder.named_token("image_token", "<image_soft_token>"),
        folder.named_token("eoi_token", "<end_of_image>"),
    )
    return Gemma3Family(
        model_type=folder.model_type,
        image_token=start,
        row_tokens=(row,),
        tokens=(start, row, end),
        settings=settings,
        side=side,
        grid=grid,
        rows=rows,
        row=row,
        end=end,
        encoder=encoder,
        stills=BILINEAR_OF[backend],
    )


def _side(folder: ModelFolder, image: Section, vision: dict[str, Any]) -> int:
    if vision["model_type"] != ENCODER["model_type"]:
        raise ConfigError(
            f"model: model_type {vision['model_type']!r} in vision_config of {CONFIG} is not followed, only "
            f"{ENCODER['model_type']}"
        )
    size = image.size({"height": 224, "width": 224})
    folder.agree(image, "size", [size["height"], size["width"]], [vision["image_size"]] * 2)
    return size["height"]


def _pooling(folder: ModelFolder, grid: int, rows: int) -> int:
    """Patches along each side of the square whose mean becomes a row."""
    per_side = math.isqrt(folder.config.get("mm_tokens_per_image") or 256)
    pooling = grid // per_side
    made = (grid // pooling) ** 2 if pooling else 0
    if rows != made:
        raise ConfigError(
            f"model: image_seq_length {rows} differs from the {made} rows that the projector of {CONFIG} makes of "
            f"{grid} x {grid} patches"
        )
    return pooling


def text_width(folder: ModelFolder) -> int:
    """Width of a folder's language model."""
    return int(folder.vision({"hidden_size": 2304}, "text_config")["hidden_size"])


_NAMED = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}


def _tiny_config(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """Windows are shorter than an image, and layers of both kinds stand before others, which see what they did."""
    rope = {
        "sliding_attention": {**tiny.ROPE, "rope_theta": 10000.0},
        "full_attention": {**tiny.ROPE, "rope_type": "linear"},
    }
    rope["full_attention"]["factor"] = 8.0
    return {
        **{"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
        **{f"{name.removesuffix('_token')}_token_index": ids[mark] for name, mark in _NAMED.items()},
        **{"mm_tokens_per_image": 16, "eos_token_id": text["eos_token_id"]},
        "text_config": {
            **{"model_type": "gemma3_text", **text, "rope_parameters": rope, "query_pre_attn_scalar": 24},
            **{"sliding_window": 12, "num_hidden_layers": 3},
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "vision_config": {
            **{"model_type": "siglip_vision_model", **tiny.VISION, "vision_use_head": False},
            **{"image_size": 112, "patch_size": 14},
        },
    }


TINY = {
    "gemma3": tiny.TinyModel(
        marks=(*tiny.MARKS[:3], *_NAMED.values()),
        config=_tiny_config,
        placeholders=("<start_of_image>", ""),
        tokenizer_names=_NAMED,
        processors={
            IMAGE_PROCESSOR: {
                **tiny.part("image", "Gemma3ImageProcessor", "Gemma3Processor", tiny.HALVES),
                **{"size": {"height": 112, "width": 112}, "resample": 2, "do_pan_and_scan": None},
            },
            PROCESSOR: {"processor_class": "Gemma3Processor", "image_seq_length": 16},
        },
        published={
            CONFIG: {"vision_config": {"image_size": 896}, "mm_tokens_per_image": 256},
            IMAGE_PROCESSOR: {"size": {"height": 896, "width": 896}},
            PROCESSOR: {"image_seq_length": 256},
        },
    )
}

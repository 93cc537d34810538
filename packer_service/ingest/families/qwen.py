"""A model folder of a Qwen-VL model to its family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from preshard.packer_service.ingest.families import tiny
from preshard.packer_service.ingest.families.qwen_sizes import PixelLimits, Qwen3VLFamily, Qwen25VLFamily, QwenFamily
from preshard.packer_service.ingest.families.settings import (
    BICUBIC,
    BICUBIC_OF,
    CLIP,
    HALVES,
    IMAGE_PROCESSOR,
    STEPS,
    VIDEO_PROCESSOR,
    Colours,
    ModelFolder,
    Section,
)
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import TIME_KEY
from preshard.schemas.model.encoders import qwen_encoder
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.sections import ImageBackend


@dataclass(frozen=True, kw_only=True, slots=True)
class QwenKind:
    """Kind of Qwen-VL model, with its settings where its folder says nothing.

    Attributes:
        video_processors: names of its video processor's class.
        video_limits: the video processor's own.
        video_colours: the same.
        cap_tokens: the video processor's ``max_video_tokens``.
        encoder: values of the encoder's class for keys that a ``config.json`` leaves out.
    """

    video_processors: tuple[str, ...]
    video_limits: PixelLimits
    video_colours: Colours
    cap_tokens: int
    encoder: dict[str, Any]

    @property
    def is_older(self) -> bool:
        """Whether its encoder has windows, and a video is one run of rows, as of Qwen2.5-VL."""
        return "window_size" in self.encoder


_WINDOWED: dict[str, Any] = {
    **{"depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "out_hidden_size": 3584},
    **{"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "window_size": 112},
    "fullatt_block_indexes": (7, 15, 23, 31),
}

KINDS = {
    "qwen2_5_vl": QwenKind(
        video_processors=("Qwen2VLVideoProcessor", "Qwen2VLImageProcessor"),
        video_limits=PixelLimits(least=128 * 28 * 28, most=28 * 28 * 768),
        video_colours=CLIP,
        cap_tokens=128000,
        encoder={**_WINDOWED, TIME_KEY: 4},
    ),
    "qwen3_vl": QwenKind(
        video_processors=("Qwen3VLVideoProcessor",),
        video_limits=PixelLimits(least=128 * 32 * 32, most=32 * 32 * 768),
        video_colours=HALVES,
        cap_tokens=768,
        encoder={
            **{"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 3584},
            **{"patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2},
            "deepstack_visual_indexes": (8, 16, 24),
        },
    ),
}
KINDS["exaone4_5"] = replace(KINDS["qwen2_5_vl"], encoder={**_WINDOWED, "num_heads": 16, "num_key_value_heads": 8})
KINDS["qwen3_vl_moe"] = KINDS["qwen3_vl"]
KINDS["qwen3_5"] = KINDS["qwen3_5_moe"] = replace(
    KINDS["qwen3_vl"], encoder={**KINDS["qwen3_vl"].encoder, "deepstack_visual_indexes": ()}
)


def read_family(folder: ModelFolder, backend: ImageBackend) -> QwenFamily:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, a setting is not followed, or both processors or the encoder disagree.
    """
    kind = KINDS[folder.model_type]
    image = folder.image_processor(("Qwen2VLImageProcessor",))
    video = folder.video_processor(kind.video_processors)
    vision = folder.vision(kind.encoder)
    sizes = shared_sizes(image, video, kind.encoder["patch_size"])
    images = _limits(image, PixelLimits(least=56 * 56, most=28 * 28 * 1280))
    videos = _limits(video, kind.video_limits)
    cap_frames = bool(video.take("cap_pixels_per_frame", False))
    cap_tokens = video.positive("max_video_tokens", kind.cap_tokens)
    for section in (image, video):
        section.fixed({**STEPS, "resample": BICUBIC})
    for name, value in sizes.items():
        folder.agree(image, name, value, vision["spatial_merge_size" if name == "merge_size" else name])
    encoder = qwen_encoder(vision)
    image_token = folder.named_token("image_token", "<|image_pad|>")
    video_token = folder.named_token("video_token", "<|video_pad|>")
    opening = folder.named_token("vision_start_token", "<|vision_start|>")
    closing = folder.named_token("vision_end_token", "<|vision_end|>")
    settings = {
        "inputs": "qwen_vl",
        **sizes,
        **folder.inputs(encoder, backend, (image, video), (CLIP, kind.video_colours)),
        **({TIME_KEY: vision[TIME_KEY]} if TIME_KEY in vision else {}),
    }
    for section in (image, video, folder.processor()):
        section.finish()
    given: dict[str, Any] = {
        **{"model_type": folder.model_type, "merge": sizes["merge_size"], "settings": settings},
        "axes": FAMILIES[folder.model_type].axes,
        **{"image_token": image_token, "video_token": video_token, "opening": opening, "closing": closing},
        **{"row_tokens": (image_token, video_token), "tokens": (image_token, video_token, opening, closing)},
        **{"encoder": encoder, "images": images, "videos": videos, "stills": BICUBIC_OF[backend]},
        **{"cap_frames": cap_frames, "cap_tokens": cap_tokens},
    }
    if kind.is_older:
        return Qwen25VLFamily(**given, tokens_per_second=vision.get(TIME_KEY, 0))
    return Qwen3VLFamily(**given)


def shared_sizes(image: Section, video: Section, patch: int) -> dict[str, int]:
    """The settings that both processors must share, since the model has one encoder."""
    sizes = {}
    for name, default in (("patch_size", patch), ("temporal_patch_size", 2), ("merge_size", 2)):
        sizes[name], other = (section.positive(name, default) for section in (image, video))
        if sizes[name] != other:
            both = f"{name} of {image.where} {sizes[name]} and {name} of {video.where} {other}"
            raise ConfigError(f"model: {both} differ, and the model has one encoder")
    return sizes


def _limits(section: Section, own: PixelLimits) -> PixelLimits:
    """Limits from ``size``, or ``min_pixels`` and ``max_pixels`` as older folders name them, which come first."""
    size = section.size({"shortest_edge": own.least, "longest_edge": own.most})
    return PixelLimits(
        least=section.positive("min_pixels", size["shortest_edge"]),
        most=section.positive("max_pixels", size["longest_edge"]),
    )


_SECTIONS = [4, 2, 2]
"""Shares of time, height and width among the pairs of a head's dimensions."""

_STATES: dict[str, Any] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 8, "linear_conv_kernel_dim": 4},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
    "rope_parameters": {
        **{**tiny.ROPE, "mrope_section": [2, 1, 1], "mrope_interleaved": True},
        "partial_rotary_factor": 0.5,
    },
}
_EXPERTS: dict[str, Any] = {
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "shared_expert_intermediate_size": 16,
}

_WINDOWS: dict[str, Any] = {"sliding_window": 4096, "layer_types": ["sliding_attention", "full_attention"]}


def _tiny_config(
    text: dict[str, Any], ids: dict[str, int], *, kind: str, name: str, changed: Mapping[str, Any]
) -> dict[str, Any]:
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    marks = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    rope = {**tiny.ROPE, "mrope_section": _SECTIONS, "mrope_interleaved": True}
    language, vision = f"{kind}_text", dict[str, Any](patch_size=16, num_position_embeddings=2304)
    if KINDS[kind].is_older:
        vision = {"patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1]}
    if kind == "qwen2_5_vl":
        text, rope = {key: value for key, value in text.items() if key != "head_dim"}, {**rope}
        del rope["mrope_interleaved"]
        vision["tokens_per_second"] = 2
    elif kind == "exaone4_5":
        language, rope, vision = "exaone4", tiny.ROPE, {**vision, "num_key_value_heads": 1}
    elif KINDS[kind].encoder["deepstack_visual_indexes"]:
        vision["deepstack_visual_indexes"] = [0]
    return {
        **{"model_type": kind, "architectures": [f"{name}ForConditionalGeneration"]},
        **{name: ids[mark] for name, mark in zip(names, marks, strict=True)},
        "text_config": {"model_type": language, **text, "rope_parameters": rope, **changed},
        "vision_config": {
            **{"model_type": f"{kind}_vision", **tiny.DEEP_VISION},
            **{"temporal_patch_size": 2, "spatial_merge_size": 2, **vision},
        },
    }


def _tiny(kind: str, name: str, processors: str, changed: Mapping[str, Any]) -> tiny.TinyModel:
    """Its processors' limits under the names that the published folders have them, which differ."""
    is_older = KINDS[kind].is_older
    shared: dict[str, Any] = {**(tiny.CLIP if is_older else tiny.HALVES), "processor_class": f"{processors}Processor"}
    shared |= {"patch_size": 14 if is_older else 16, "temporal_patch_size": 2, "merge_size": 2}

    def limits(least: int, most: int) -> dict[str, Any]:
        if is_older:
            return {"min_pixels": least, "max_pixels": most}
        return {"size": {"shortest_edge": least, "longest_edge": most}}

    images, videos = ((3136, 1003520), (3136, 100352)) if is_older else ((65536, 1003520), (4096, 6291456))
    published: dict[str, Any] = {IMAGE_PROCESSOR: limits(65536, 16777216)}
    if is_older:
        published = {IMAGE_PROCESSOR: limits(3136, 12845056), VIDEO_PROCESSOR: {"max_pixels": 602112}}
    video = "Qwen2VLVideoProcessor" if is_older else "Qwen3VLVideoProcessor"
    return tiny.TinyModel(
        marks=tiny.MARKS,
        config=partial(_tiny_config, kind=kind, name=name, changed=changed),
        placeholders=("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"),
        processors={
            IMAGE_PROCESSOR: {"image_processor_type": "Qwen2VLImageProcessor", **shared, **limits(*images)},
            VIDEO_PROCESSOR: {"video_processor_type": video, **shared, **limits(*videos)},
        },
        published=published,
    )


TINY = {
    "qwen3_vl": _tiny("qwen3_vl", "Qwen3VL", "Qwen3VL", {}),
    "qwen3_vl_moe": _tiny("qwen3_vl_moe", "Qwen3VLMoe", "Qwen3VL", _EXPERTS),
    "qwen3_5": _tiny("qwen3_5", "Qwen3_5", "Qwen3VL", _STATES),
    "qwen3_5_moe": _tiny("qwen3_5_moe", "Qwen3_5Moe", "Qwen3VL", {**_STATES, **_EXPERTS}),
    "qwen2_5_vl": _tiny("qwen2_5_vl", "Qwen2_5_VL", "Qwen2_5_VL", {}),
    "exaone4_5": _tiny("exaone4_5", "Exaone4_5_", "Exaone4_5_", _WINDOWS),
}

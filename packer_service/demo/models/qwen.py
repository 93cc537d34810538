"""Qwen3 and the Qwen-VL models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from preshard.packer_service.demo.models.common import (
    CLIP,
    HALVES,
    IMAGES,
    LAYERS,
    QWEN_MARKS,
    ROPE,
    SECTIONS,
    VIDEOS,
    VISION_HEADS,
    VISION_INNER,
    VISION_WIDTH,
    WIDTH,
    DemoModel,
)

_PLACEHOLDERS = ("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>")


def _qwen3(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:  # noqa: ARG001
    return {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **text, "rope_parameters": ROPE}


def _qwen_ids(ids: dict[str, int]) -> dict[str, int]:
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    marks = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    return {name: ids[mark] for name, mark in zip(names, marks, strict=True)}


def _qwen3_vl(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    rope = {**ROPE, "mrope_section": SECTIONS, "mrope_interleaved": True}
    return {
        **{"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], **_qwen_ids(ids)},
        "text_config": {"model_type": "qwen3_vl_text", **text, "rope_parameters": rope},
        "vision_config": {
            **{"model_type": "qwen3_vl_vision", "depth": LAYERS, "hidden_size": VISION_WIDTH},
            **{"num_heads": VISION_HEADS, "intermediate_size": VISION_INNER, "out_hidden_size": WIDTH},
            **{"patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304},
            "deepstack_visual_indexes": [0],
        },
    }


def _qwen3_5(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    older = _qwen3_vl(text, ids)
    rope = {**ROPE, "mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.5}
    states = {"linear_num_key_heads": 2, "linear_num_value_heads": 8}
    states |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4}
    vision = {key: value for key, value in older["vision_config"].items() if key != "deepstack_visual_indexes"}
    return {
        **older,
        **{"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]},
        "text_config": {
            **{"model_type": "qwen3_5_text", **text, **states, "rope_parameters": rope},
            "layer_types": ["linear_attention", "full_attention"],
        },
        "vision_config": {**vision, "model_type": "qwen3_5_vision"},
    }


def _qwen2_5_vl(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    text = {key: value for key, value in text.items() if key != "head_dim"}
    rope = {**ROPE, "mrope_section": SECTIONS}
    return {
        **{"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"], **_qwen_ids(ids)},
        "text_config": {"model_type": "qwen2_5_vl_text", **text, "rope_parameters": rope},
        "vision_config": {
            **{"model_type": "qwen2_5_vl_vision", "depth": LAYERS, "hidden_size": VISION_WIDTH},
            **{"num_heads": VISION_HEADS, "intermediate_size": VISION_INNER, "out_hidden_size": WIDTH},
            **{"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "tokens_per_second": 2},
            **{"window_size": 112, "fullatt_block_indexes": [1]},
        },
    }


QWEN3 = DemoModel(marks=QWEN_MARKS, config=_qwen3)

QWEN3_VL = DemoModel(
    marks=QWEN_MARKS,
    config=_qwen3_vl,
    placeholders=_PLACEHOLDERS,
    processors={
        IMAGES: {
            **{"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen3VLProcessor", **HALVES},
            **{"size": {"shortest_edge": 65536, "longest_edge": 1003520}},
            **{"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2},
        },
        VIDEOS: {
            **{"video_processor_type": "Qwen3VLVideoProcessor", "processor_class": "Qwen3VLProcessor", **HALVES},
            **{"size": {"shortest_edge": 4096, "longest_edge": 6291456}},
            **{"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2},
        },
    },
    published={IMAGES: {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}},
)

QWEN3_5 = replace(QWEN3_VL, config=_qwen3_5)

QWEN2_5_VL = DemoModel(
    marks=QWEN_MARKS,
    config=_qwen2_5_vl,
    placeholders=_PLACEHOLDERS,
    processors={
        IMAGES: {
            **{"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor", **CLIP},
            **{"min_pixels": 3136, "max_pixels": 1003520, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2},
        },
        VIDEOS: {
            **{"video_processor_type": "Qwen2VLVideoProcessor", "processor_class": "Qwen2_5_VLProcessor", **CLIP},
            **{"min_pixels": 3136, "max_pixels": 100352, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2},
        },
    },
    published={IMAGES: {"min_pixels": 3136, "max_pixels": 12845056}, VIDEOS: {"max_pixels": 602112}},
)

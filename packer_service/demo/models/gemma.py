"""Gemma 3."""

from __future__ import annotations

from typing import Any

from preshard.packer_service.demo.models.common import (
    HALVES,
    IMAGES,
    LAYERS,
    PROCESSOR,
    QWEN_MARKS,
    ROPE,
    VISION_HEADS,
    VISION_INNER,
    VISION_WIDTH,
    DemoModel,
)

_NAMED = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}


def _gemma3(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """Windows are shorter than an image."""
    rope = {"sliding_attention": {**ROPE, "rope_theta": 10000.0}, "full_attention": {**ROPE, "rope_type": "linear"}}
    rope["full_attention"]["factor"] = 8.0
    return {
        **{"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
        **{f"{name.removesuffix('_token')}_token_index": ids[mark] for name, mark in _NAMED.items()},
        **{"mm_tokens_per_image": 16, "eos_token_id": text["eos_token_id"]},
        "text_config": {
            **{"model_type": "gemma3_text", **text, "rope_parameters": rope, "query_pre_attn_scalar": 24},
            **{"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]},
        },
        "vision_config": {
            **{"model_type": "siglip_vision_model", "hidden_size": VISION_WIDTH, "num_hidden_layers": LAYERS},
            **{"num_attention_heads": VISION_HEADS, "intermediate_size": VISION_INNER, "vision_use_head": False},
            **{"image_size": 112, "patch_size": 14},
        },
    }


GEMMA3 = DemoModel(
    marks=(*QWEN_MARKS[:3], *_NAMED.values()),
    config=_gemma3,
    placeholders=("<start_of_image>", ""),
    tokenizer_names=_NAMED,
    processors={
        IMAGES: {
            **{"image_processor_type": "Gemma3ImageProcessor", "processor_class": "Gemma3Processor", **HALVES},
            **{"size": {"height": 112, "width": 112}, "resample": 2, "do_pan_and_scan": None},
        },
        PROCESSOR: {"processor_class": "Gemma3Processor", "image_seq_length": 16},
    },
    published={
        "config.json": {"vision_config": {"image_size": 896}, "mm_tokens_per_image": 256},
        IMAGES: {"size": {"height": 896, "width": 896}},
        PROCESSOR: {"image_seq_length": 256},
    },
)

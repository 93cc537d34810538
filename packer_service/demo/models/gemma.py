"""Gemma 3 and 4."""

from __future__ import annotations

from typing import Any

from preshard.packer_service.demo.models.common import (
    HALVES,
    IMAGES,
    LAYERS,
    PROCESSOR,
    QWEN_MARKS,
    ROPE,
    VIDEOS,
    VISION_HEADS,
    VISION_INNER,
    VISION_WIDTH,
    DemoModel,
)

_NAMED = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}


def _gemma3(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """Windows are shorter than an image, and layers of both kinds stand before others, which see what they did."""
    rope = {"sliding_attention": {**ROPE, "rope_theta": 10000.0}, "full_attention": {**ROPE, "rope_type": "linear"}}
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

_NAMED4 = {
    **{"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"},
    **{"boa_token": "<|audio>", "audio_token": "<|audio|>", "eoa_token": "<audio|>"},
}


def _gemma4(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """Keys of full layers are their values, wider, and of one head."""
    rope = {
        "sliding_attention": {**ROPE, "rope_theta": 10000.0},
        "full_attention": {**ROPE, "rope_type": "proportional", "partial_rotary_factor": 0.25},
    }
    named = {name: ids[mark] for name, mark in (*_NAMED4.items(), ("video_token", "<|video|>"))}
    heads = {"num_attention_heads": VISION_HEADS, "num_key_value_heads": VISION_HEADS, "head_dim": 16}
    return {
        **{"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"]},
        **{f"{name}_id" if name != "eoa_token" else "eoa_token_index": number for name, number in named.items()},
        **{"audio_config": None, "eos_token_id": text["eos_token_id"]},
        "text_config": {
            **{"model_type": "gemma4_text", **text, "rope_parameters": rope, "final_logit_softcapping": 0.5},
            **{"sliding_window": 12, "num_hidden_layers": 3},
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            **{"use_bidirectional_attention": "vision", "attention_k_eq_v": True, "num_kv_shared_layers": 0},
            **{"global_head_dim": 32, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0},
        },
        "vision_config": {
            **{"model_type": "gemma4_vision", "hidden_size": VISION_WIDTH, "num_hidden_layers": LAYERS, **heads},
            **{"intermediate_size": VISION_INNER, "patch_size": 16, "pooling_kernel_size": 3},
            **{"position_embedding_size": 1024, "standardize": True},
        },
    }


_UNCHANGED = {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0], "patch_size": 16, "pooling_kernel_size": 3}

GEMMA4 = DemoModel(
    marks=(*QWEN_MARKS[:3], *_NAMED4.values(), "<|video|>"),
    config=_gemma4,
    placeholders=("<|image|>", "<|video|>"),
    tokenizer_names=_NAMED4,
    processors={
        IMAGES: {
            **{"image_processor_type": "Gemma4ImageProcessor", "processor_class": "Gemma4Processor", **_UNCHANGED},
            **{"do_normalize": False, "max_soft_tokens": 70, "resample": 3},
        },
        VIDEOS: {
            **{"video_processor_type": "Gemma4VideoProcessor", "processor_class": "Gemma4Processor", **_UNCHANGED},
            **{"do_normalize": True, "max_soft_tokens": 70, "resample": 3},
        },
        PROCESSOR: {
            **{"processor_class": "Gemma4Processor", "image_seq_length": 70},
            "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
        },
    },
    published={IMAGES: {"max_soft_tokens": 280}, PROCESSOR: {"image_seq_length": 280}},
)

"""Configurations of tiny models, one for each family: real in kind, small in every dimension that costs time."""

from __future__ import annotations

from typing import Any

WIDTH, LAYERS, HEADS = 64, 2, 4
VISION_WIDTH, VISION_HEADS, VISION_INNER = 32, 2, 64
CONTEXT = 131072
QWEN_MARKS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
"""Qwen2.5's special tokens in the order of their ids."""

MARKS: dict[str, tuple[str, ...]] = {
    "qwen3": QWEN_MARKS,
    "qwen3_vl": QWEN_MARKS,
    "qwen2_5_vl": QWEN_MARKS,
    "internvl": (*QWEN_MARKS[:3], "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
    "molmo2": (
        *(*QWEN_MARKS[:3], "<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>", "<|image|>"),
        *("<im_low>", "<frame_start>", "<frame_end>", "<|video|>"),
    ),
}
"""The special tokens of each family."""

FAMILIES = tuple(MARKS)
"""What a model folder can be written for; the command line lists them in this order."""

TOKENIZER_NAMES: dict[str, dict[str, str]] = {
    "internvl": {
        **{"start_image_token": "<img>", "end_image_token": "</img>"},
        **{"context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"},
    }
}
"""Names under which a family's processor asks its tokenizer for special tokens."""

_TEXT: dict[str, Any] = {
    **{"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS},
    **{"num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS},
    **{"max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "hidden_act": "silu"},
}
_ROPE = {"rope_type": "default", "rope_theta": 1000000.0}
_SECTIONS = [4, 2, 2]
"""How the pairs of a head's dimensions are shared among time, height and width."""

_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def model_config(family: str, ids: dict[str, int], vocab_size: int) -> dict[str, Any]:
    """The ``config.json`` of a family's tiny model.

    Args:
        family: a key of :data:`MARKS`.
        ids: id of each special token.
        vocab_size: ids below this are the tokenizer's.
    """
    text = {**_TEXT, "vocab_size": vocab_size, "eos_token_id": ids["<|im_end|>"]}
    return {**_BUILDERS[family](text, ids), "dtype": "float32"}


def processor_files(family: str) -> dict[str, dict[str, Any]]:
    """The processors' files of a family's model folder; none for a model of text."""
    return {name: dict(values) for name, values in _PROCESSORS.get(family, {}).items()}


def _qwen3(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:  # noqa: ARG001
    return {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **text, "rope_parameters": _ROPE}


def _qwen_ids(ids: dict[str, int]) -> dict[str, int]:
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    marks = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    return {name: ids[mark] for name, mark in zip(names, marks, strict=True)}


def _qwen3_vl(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    rope = {**_ROPE, "mrope_section": _SECTIONS, "mrope_interleaved": True}
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


def _qwen2_5_vl(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    text = {key: value for key, value in text.items() if key != "head_dim"}
    rope = {**_ROPE, "mrope_section": _SECTIONS}
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


def _internvl(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        **{"model_type": "internvl", "architectures": ["InternVLForConditionalGeneration"]},
        **{"image_token_id": ids["<IMG_CONTEXT>"], "image_seq_length": 16, "downsample_ratio": 0.5},
        "tie_word_embeddings": False,
        "text_config": {"model_type": "qwen3", **text, "rope_parameters": _ROPE},
        "vision_config": {
            **{"model_type": "internvl_vision", "hidden_size": VISION_WIDTH, "num_hidden_layers": LAYERS},
            **{"num_attention_heads": VISION_HEADS, "intermediate_size": VISION_INNER},
            **{"image_size": [112, 112], "patch_size": [14, 14]},
        },
    }


def _molmo2(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    names = {
        **{"image_start_token_id": "<im_start>", "low_res_image_start_token_id": "<low_res_im_start>"},
        **{"image_end_token_id": "<im_end>", "image_patch_id": "<im_patch>"},
        **{"frame_start_token_id": "<frame_start>", "frame_end_token_id": "<frame_end>"},
    }
    heads = {"num_attention_heads": VISION_HEADS, "num_key_value_heads": VISION_HEADS}
    heads["head_dim"] = VISION_WIDTH // VISION_HEADS
    return {
        **{"model_type": "molmo2", "architectures": ["Molmo2ForConditionalGeneration"]},
        **{name: ids[mark] for name, mark in names.items()},
        "text_config": {"model_type": "molmo2_text", **text, "rope_parameters": _ROPE, "additional_vocab_size": 0},
        "vision_config": {
            **{"model_type": "molmo2_vision", "hidden_size": VISION_WIDTH, "intermediate_size": VISION_INNER, **heads},
            **{"num_hidden_layers": LAYERS, "image_size": [112, 112], "patch_size": 14},
        },
        "adapter_config": {
            **{"model_type": "molmo2_adapter", "vision_feature_layer": [1, 0], "hidden_size": VISION_WIDTH, **heads},
            **{"intermediate_size": 2 * WIDTH, "text_hidden_size": WIDTH},
        },
    }


_BUILDERS = {
    "qwen3": _qwen3,
    "qwen3_vl": _qwen3_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "internvl": _internvl,
    "molmo2": _molmo2,
}

_IMAGES, _VIDEOS, _PROCESSOR = "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"
_PROCESSORS: dict[str, dict[str, dict[str, Any]]] = {
    "qwen3_vl": {
        _IMAGES: {
            **{"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen3VLProcessor", **_HALVES},
            **{"size": {"shortest_edge": 65536, "longest_edge": 1003520}},
            **{"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2},
        },
        _VIDEOS: {
            **{"video_processor_type": "Qwen3VLVideoProcessor", "processor_class": "Qwen3VLProcessor", **_HALVES},
            **{"size": {"shortest_edge": 4096, "longest_edge": 6291456}},
            **{"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2},
        },
    },
    "qwen2_5_vl": {
        _IMAGES: {
            **{"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor", **_CLIP},
            **{"min_pixels": 3136, "max_pixels": 1003520, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2},
        },
        _VIDEOS: {
            **{"video_processor_type": "Qwen2VLVideoProcessor", "processor_class": "Qwen2_5_VLProcessor", **_CLIP},
            **{"min_pixels": 3136, "max_pixels": 100352, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2},
        },
    },
    "internvl": {
        _IMAGES: {
            **{"image_processor_type": "GotOcr2ImageProcessor", "processor_class": "InternVLProcessor", **_CLIP},
            **{"size": {"height": 112, "width": 112}, "min_patches": 1, "max_patches": 12, "crop_to_patches": False},
        },
        _VIDEOS: {
            **{"video_processor_type": "InternVLVideoProcessor", "processor_class": "InternVLProcessor", **_CLIP},
            "size": {"height": 112, "width": 112},
        },
        _PROCESSOR: {"processor_class": "InternVLProcessor", "image_seq_length": 16},
    },
    "molmo2": {
        _IMAGES: {
            **{"image_processor_type": "Molmo2ImageProcessor", "processor_class": "Molmo2Processor", **_HALVES},
            **{"size": {"height": 112, "width": 112}, "patch_size": 14, "max_crops": 8, "overlap_margins": [1, 1]},
            "pooling_size": [2, 2],
        },
        _VIDEOS: {
            **{"video_processor_type": "Molmo2VideoProcessor", "processor_class": "Molmo2Processor", **_HALVES},
            **{"size": {"height": 112, "width": 112}, "patch_size": 14, "pooling_size": [3, 3]},
            **{"do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True},
        },
        _PROCESSOR: {"processor_class": "Molmo2Processor"},
    },
}

PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    "qwen3_vl": {_IMAGES: {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}},
    "qwen2_5_vl": {_IMAGES: {"min_pixels": 3136, "max_pixels": 12845056}, _VIDEOS: {"max_pixels": 602112}},
    "internvl": {
        "config.json": {"vision_config": {"image_size": [448, 448]}, "image_seq_length": 256},
        _IMAGES: {"size": {"height": 448, "width": 448}},
        _VIDEOS: {"size": {"height": 448, "width": 448}},
        _PROCESSOR: {"image_seq_length": 256},
    },
    "molmo2": {
        "config.json": {"vision_config": {"image_size": [378, 378]}},
        _IMAGES: {"size": {"height": 378, "width": 378}, "overlap_margins": [4, 4]},
        _VIDEOS: {"size": {"height": 378, "width": 378}},
    },
}
"""What the published models' folders say of sizes where the tiny ones have less, by file and setting."""

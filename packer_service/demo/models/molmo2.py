"""Molmo2."""

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
    WIDTH,
    DemoModel,
)


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
        "text_config": {"model_type": "molmo2_text", **text, "rope_parameters": ROPE, "additional_vocab_size": 0},
        "vision_config": {
            **{"model_type": "molmo2_vision", "hidden_size": VISION_WIDTH, "intermediate_size": VISION_INNER, **heads},
            **{"num_hidden_layers": LAYERS, "image_size": [112, 112], "patch_size": 14},
        },
        "adapter_config": {
            **{"model_type": "molmo2_adapter", "vision_feature_layer": [1, 0], "hidden_size": VISION_WIDTH, **heads},
            **{"intermediate_size": 2 * WIDTH, "text_hidden_size": WIDTH},
        },
    }


MOLMO2 = DemoModel(
    marks=(
        *(*QWEN_MARKS[:3], "<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>", "<|image|>"),
        *("<im_low>", "<frame_start>", "<frame_end>", "<|video|>"),
    ),
    config=_molmo2,
    placeholders=("<|image|>", "<|video|>"),
    processors={
        IMAGES: {
            **{"image_processor_type": "Molmo2ImageProcessor", "processor_class": "Molmo2Processor", **HALVES},
            **{"size": {"height": 112, "width": 112}, "patch_size": 14, "max_crops": 8, "overlap_margins": [1, 1]},
            "pooling_size": [2, 2],
        },
        VIDEOS: {
            **{"video_processor_type": "Molmo2VideoProcessor", "processor_class": "Molmo2Processor", **HALVES},
            **{"size": {"height": 112, "width": 112}, "patch_size": 14, "pooling_size": [3, 3]},
            **{"do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True},
        },
        PROCESSOR: {"processor_class": "Molmo2Processor"},
    },
    published={
        "config.json": {"vision_config": {"image_size": [378, 378]}},
        IMAGES: {"size": {"height": 378, "width": 378}, "overlap_margins": [4, 4]},
        VIDEOS: {"size": {"height": 378, "width": 378}},
    },
)

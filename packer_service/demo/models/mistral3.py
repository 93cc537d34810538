"""Mistral 3."""

from __future__ import annotations

from typing import Any

from preshard.packer_service.demo.models.common import (
    CLIP,
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


def _mistral3(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        **{"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"]},
        **{"image_token_index": ids["[IMG]"], "spatial_merge_size": 2, "tie_word_embeddings": False},
        "text_config": {"model_type": "mistral", **text, "sliding_window": None, "rope_parameters": ROPE},
        "vision_config": {
            **{"model_type": "pixtral", "hidden_size": VISION_WIDTH, "num_hidden_layers": LAYERS},
            **{"num_attention_heads": VISION_HEADS, "head_dim": VISION_WIDTH // VISION_HEADS},
            **{"intermediate_size": VISION_INNER, "image_size": 448, "patch_size": 14, "hidden_act": "silu"},
            "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
        },
    }


MISTRAL3 = DemoModel(
    marks=(*QWEN_MARKS[:3], "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    config=_mistral3,
    placeholders=("[IMG]", ""),
    processors={
        IMAGES: {
            **{"image_processor_type": "PixtralImageProcessor", "processor_class": "PixtralProcessor", **CLIP},
            **{"size": {"longest_edge": 448}, "patch_size": 14},
        },
        PROCESSOR: {
            **{"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2},
            **{"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
        },
    },
    published={IMAGES: {"size": {"longest_edge": 1540}}},
)

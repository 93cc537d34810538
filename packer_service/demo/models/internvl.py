"""InternVL."""

from __future__ import annotations

from typing import Any

from preshard.packer_service.demo.models.common import (
    CLIP,
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


def _internvl(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        **{"model_type": "internvl", "architectures": ["InternVLForConditionalGeneration"]},
        **{"image_token_id": ids["<IMG_CONTEXT>"], "image_seq_length": 16, "downsample_ratio": 0.5},
        "tie_word_embeddings": False,
        "text_config": {"model_type": "qwen3", **text, "rope_parameters": ROPE},
        "vision_config": {
            **{"model_type": "internvl_vision", "hidden_size": VISION_WIDTH, "num_hidden_layers": LAYERS},
            **{"num_attention_heads": VISION_HEADS, "intermediate_size": VISION_INNER},
            **{"image_size": [112, 112], "patch_size": [14, 14]},
        },
    }


INTERNVL = DemoModel(
    marks=(*QWEN_MARKS[:3], "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
    config=_internvl,
    placeholders=("<IMG_CONTEXT>\n", "<video>\n"),
    tokenizer_names={
        **{"start_image_token": "<img>", "end_image_token": "</img>"},
        **{"context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"},
    },
    processors={
        IMAGES: {
            **{"image_processor_type": "GotOcr2ImageProcessor", "processor_class": "InternVLProcessor", **CLIP},
            **{"size": {"height": 112, "width": 112}, "min_patches": 1, "max_patches": 12, "crop_to_patches": False},
        },
        VIDEOS: {
            **{"video_processor_type": "InternVLVideoProcessor", "processor_class": "InternVLProcessor", **CLIP},
            "size": {"height": 112, "width": 112},
        },
        PROCESSOR: {"processor_class": "InternVLProcessor", "image_seq_length": 16},
    },
    published={
        "config.json": {"vision_config": {"image_size": [448, 448]}, "image_seq_length": 256},
        IMAGES: {"size": {"height": 448, "width": 448}},
        VIDEOS: {"size": {"height": 448, "width": 448}},
        PROCESSOR: {"image_seq_length": 256},
    },
)

"""GLM-4.1V, GLM-4.5V and GLM-4.6V."""

from __future__ import annotations

from functools import partial
from typing import Any

from preshard.packer_service.demo.models.common import (
    CLIP,
    IMAGES,
    LAYERS,
    QWEN_MARKS,
    ROPE,
    VIDEOS,
    VISION_HEADS,
    VISION_INNER,
    VISION_WIDTH,
    WIDTH,
    DemoModel,
    Files,
)

_NAMED = {
    **{"image_start_token_id": "<|begin_of_image|>", "image_end_token_id": "<|end_of_image|>"},
    **{"video_start_token_id": "<|begin_of_video|>", "video_end_token_id": "<|end_of_video|>"},
    **{"image_token_id": "<|image|>", "video_token_id": "<|video|>"},
}
_MARKS = (*QWEN_MARKS[:3], *_NAMED.values())
_PLACEHOLDERS = (
    "<|begin_of_image|><|image|><|end_of_image|>",
    "<|begin_of_video|><|video|><|end_of_video|>",
)
_EXPERTS = {
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1, "attention_bias": True},
}


def _glm(
    text: dict[str, Any], ids: dict[str, int], *, model_type: str, name: str, parts: str, experts: dict[str, Any]
) -> dict[str, Any]:
    sections = {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    text = {key: value for key, value in text.items() if experts or key != "head_dim"}
    return {
        **{"model_type": model_type, "architectures": [f"{name}ForConditionalGeneration"]},
        **{key: ids[mark] for key, mark in _NAMED.items()},
        "text_config": {"model_type": f"{parts}_text", **text, **experts, "rope_parameters": {**ROPE, **sections}},
        "vision_config": {
            **{"model_type": f"{parts}_vision", "depth": LAYERS, "hidden_size": VISION_WIDTH},
            **{"num_heads": VISION_HEADS, "intermediate_size": VISION_INNER, "out_hidden_size": WIDTH},
            **{"image_size": 112, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2},
        },
    }


def _processors(name: str) -> Files:
    """The files of a processor's two parts."""
    shared = {
        **CLIP,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "processor_class": f"{name}Processor",
    }
    return {
        IMAGES: {
            **{"image_processor_type": f"{name}ImageProcessor", **shared},
            "size": {"shortest_edge": 12544, "longest_edge": 2007040},
        },
        VIDEOS: {
            **{"video_processor_type": f"{name}VideoProcessor", **shared},
            "size": {"shortest_edge": 12544, "longest_edge": 6291456},
        },
    }


_PUBLISHED = {
    IMAGES: {"size": {"shortest_edge": 12544, "longest_edge": 9633792}},
    VIDEOS: {"size": {"shortest_edge": 12544, "longest_edge": 47040000}},
}

GLM4V = DemoModel(
    marks=_MARKS,
    config=partial(_glm, model_type="glm4v", name="Glm4v", parts="glm4v", experts={}),
    placeholders=_PLACEHOLDERS,
    processors=_processors("Glm4v"),
    published=_PUBLISHED,
)

GLM4V_MOE = DemoModel(
    marks=_MARKS,
    config=partial(_glm, model_type="glm4v_moe", name="Glm4vMoe", parts="glm4v_moe", experts=_EXPERTS),
    placeholders=_PLACEHOLDERS,
    processors=_processors("Glm4v"),
)

GLM46V = DemoModel(
    marks=_MARKS,
    config=partial(_glm, model_type="glm46v", name="Glm46V", parts="glm4v", experts={}),
    placeholders=_PLACEHOLDERS,
    processors=_processors("Glm46V"),
    published=_PUBLISHED,
)

"""The tiny models, one for each family: real in kind, small in every dimension that costs time."""

from __future__ import annotations

from typing import Any

from preshard.packer_service.demo.models.common import CONTEXT, HEADS, LAYERS, WIDTH, DemoModel, Files
from preshard.packer_service.demo.models.gemma import GEMMA3, GEMMA4
from preshard.packer_service.demo.models.glm import GLM4V, GLM4V_MOE, GLM46V
from preshard.packer_service.demo.models.internvl import INTERNVL
from preshard.packer_service.demo.models.mistral3 import MISTRAL3
from preshard.packer_service.demo.models.molmo2 import MOLMO2
from preshard.packer_service.demo.models.qwen import QWEN2_5_VL, QWEN3, QWEN3_5, QWEN3_VL

MODELS: dict[str, DemoModel] = {
    "qwen3": QWEN3,
    "qwen3_vl": QWEN3_VL,
    "qwen3_5": QWEN3_5,
    "qwen2_5_vl": QWEN2_5_VL,
    "internvl": INTERNVL,
    "molmo2": MOLMO2,
    "glm4v": GLM4V,
    "glm4v_moe": GLM4V_MOE,
    "glm46v": GLM46V,
    "gemma3": GEMMA3,
    "mistral3": MISTRAL3,
    "gemma4": GEMMA4,
}

MARKS: dict[str, tuple[str, ...]] = {name: model.marks for name, model in MODELS.items()}
"""The special tokens of each family."""

FAMILIES = tuple(MODELS)
"""What a model folder can be written for; the command line lists them in this order."""

PUBLISHED: dict[str, Files] = {name: model.published for name, model in MODELS.items() if model.published}
"""What the published models' folders say of sizes where the tiny ones have less, by file and setting."""

_TEXT: dict[str, Any] = {
    **{"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS},
    **{"num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS},
    **{"max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "hidden_act": "silu"},
}


def model_config(family: str, ids: dict[str, int], vocab_size: int) -> dict[str, Any]:
    """The ``config.json`` of a family's tiny model.

    Args:
        family: a key of :data:`MODELS`.
        ids: id of each special token.
        vocab_size: ids below this are the tokenizer's.
    """
    text = {**_TEXT, "vocab_size": vocab_size, "eos_token_id": ids["<|im_end|>"]}
    return {**MODELS[family].config(text, ids), "dtype": "float32"}


def processor_files(family: str) -> dict[str, dict[str, Any]]:
    """The processors' files of a family's model folder; none for a model of text."""
    return {name: dict(values) for name, values in MODELS[family].processors.items()}

"""Sizes of released models, on the meta device: packing, advice and the trainer's estimate know them alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers_alone import load_transformers

from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.ingest.families.folder import load_family
from preshard.packer_service.plan.cost import CostModel
from preshard.packer_service.report.advice.model import folder_cost, folder_sizes
from preshard.schemas.config import PackConfig
from preshard.schemas.model.dimensions import model_dimensions
from preshard.schemas.model.encoders import ENCODERS
from preshard.trainer.models.interface import decoder_layers
from preshard.trainer.models.load import empty_model, model_sizes, read_model_config

SHARED: dict[str, Any] = {
    **{"head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144, "linear_num_key_heads": 16},
    **{"linear_key_head_dim": 128, "linear_value_head_dim": 128},
    "rope_parameters": {
        **{"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        **{"mrope_interleaved": True, "mrope_section": [11, 11, 10]},
    },
}

RELEASED: dict[str, tuple[str, dict[str, Any], int]] = {
    "Qwen3.8-27B": (
        "qwen3_5",
        {
            **{**SHARED, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64},
            **{"num_attention_heads": 24, "num_key_value_heads": 4, "linear_num_value_heads": 48},
        },
        27,
    ),
    "Qwen3.6-35B-A3B": (
        "qwen3_5_moe",
        {
            **{**SHARED, "hidden_size": 2048, "num_hidden_layers": 40, "num_experts": 256, "num_experts_per_tok": 8},
            **{"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512},
            **{"num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_value_heads": 32},
        },
        35,
    ),
}
"""The family, settings of the language model, and billions of parameters, as published."""


@pytest.mark.parametrize("name", RELEASED)
def test_sizes_of_a_released_model_are_those_that_it_has(name: str, tmp_path: Path) -> None:
    """Fails when a released model is refused, or estimated otherwise than it is where packs or trainers ask."""
    family, text, billions = RELEASED[name]
    text = {**text, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (text["num_hidden_layers"] // 4)}
    vision = {
        **{"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16},
        "out_hidden_size": text["hidden_size"],
    }
    files = {"config.json": {"text_config": text, "vision_config": vision}}
    write_model_folder(tmp_path, family, vocabulary=256, files=files)
    assert load_family(str(tmp_path)).family.model_type == family

    every = sum(each.numel() for each in empty_model(tmp_path).parameters())
    assert round(every / 1e9) == billions
    advised, whole = folder_sizes(str(tmp_path)), load_transformers().AutoConfig.from_pretrained(tmp_path).to_dict()
    assert advised.parameters == pytest.approx(every, rel=0.01)
    assert replace(advised, source="") == model_dimensions(whole, ENCODERS[family](whole), "")
    sizes = model_sizes(read_model_config(tmp_path))
    assert sizes.num_heads == text["num_attention_heads"]


LATENT = [
    pytest.param("deepseek_v3", 671, (192, 128), (512, 64), marks=pytest.mark.slow),
    pytest.param("glm4_moe_lite", 30, (256, 256), (512, 64), marks=pytest.mark.slow),
    pytest.param("minicpm3", 4, (96, 64), (256, 32)),
]
"""Types whose defaults in ``transformers`` are the sizes of DeepSeek-V3, GLM-4.7-Flash and MiniCPM3-4B; billions of
parameters, widths of keys and values, and of latents and what keys share.
"""


@pytest.mark.parametrize(("name", "billions", "widths", "latent"), LATENT)
def test_sizes_of_a_released_model_with_a_latent(
    name: str, billions: int, widths: tuple[int, int], latent: tuple[int, int], tmp_path: Path
) -> None:
    """Fails when the width of keys is taken for that of their turned part, or a latent's projections are miscounted."""
    config = load_transformers().CONFIG_MAPPING[name]().to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model: Any = empty_model(tmp_path)
    every, found = sum(each.numel() for each in model.parameters()), model_dimensions(config, None, "")
    assert round(every / 1e9) == billions
    assert found.parameters == pytest.approx(every, rel=0.005)
    sizes = model_sizes(read_model_config(tmp_path))
    assert (found.head_dim, found.value_dim) == (sizes.head_dims[0], sizes.value_dims[0]) == widths
    assert found.tile_flops == 2 * 128 * 128 * found.heads * sum(widths) * found.layers
    assert (found.latent, found.shared) == latent
    assert found.expanding == decoder_layers(model)[0].self_attn.kv_b_proj.weight.numel()


def test_a_tile_costs_what_both_widths_ask_for(tmp_path: Path) -> None:
    """Fails when a dataset's costs take values to be as wide as keys, or keys to be as narrow as values."""
    widths = {"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "head_dim": 8, "v_head_dim": 10}
    config = {"model_type": "minicpm3", "architectures": ["MiniCPM3ForCausalLM"], **widths, "num_key_value_heads": 4}
    write_model_folder(tmp_path, "qwen3", vocabulary=256, files={"config.json": config})
    cost, sizes = folder_cost(str(tmp_path), "torchvision"), folder_sizes(str(tmp_path))
    assert cost["head_dim"] == 15
    of_tile = CostModel.of(PackConfig.model_validate({"cost": cost})).attention_flops_per_tile
    assert of_tile == 3 * sizes.tile_flops == 3 * 2 * 128 * 128 * 4 * (20 + 10) * sizes.layers

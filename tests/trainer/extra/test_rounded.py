"""An export in another dtype is what ``transformers`` makes of the whole one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers_alone import load_transformers

from preshard.packer_service.demo.model import write_model_folder
from preshard.schemas.errors import ConfigError
from preshard.trainer.core.config import make_config
from preshard.trainer.core.export import write_folder
from preshard.trainer.models.load import load_model

EXPERTS = {
    **{"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 2},
    **{"num_experts_per_tok": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1},
}
"""A model whose routers add a buffer to their scores, which ``transformers`` keeps in float32."""


@pytest.mark.parametrize(("family", "config"), [("qwen3", EXPERTS), ("qwen3_vl", {})], ids=["experts", "pictures"])
def test_parameters_are_rounded_and_the_rest_is_not(tmp_path: Path, family: str, config: dict[str, Any]) -> None:
    """Fails when a model that was trained from bfloat16 can only be exported at twice its size, when its configuration
    says another dtype than its files, or when what is added to a router's scores is rounded.
    """
    source = tmp_path / "source"
    write_model_folder(source, family, vocabulary=300, files={"config.json": config})
    (source / "optimizer.bin").write_bytes(b"of another trainer")
    model: Any = load_model(source, from_scratch=True, seed=1)
    for name, buffer in model.named_buffers():
        if "bias" in name:
            buffer.normal_()
    for name in (None, "bfloat16"):
        write_folder(model, model.state_dict(), source, tmp_path / str(name), name)
    written = json.loads((tmp_path / "bfloat16" / "config.json").read_text(encoding="utf-8"))
    parts = [written, *(written[key] for key in ("text_config", "vision_config") if key in written)]
    assert {part.get("dtype", "bfloat16") for part in parts} == {"bfloat16"}
    auto = (
        load_transformers().AutoModelForImageTextToText if "vl" in family else load_transformers().AutoModelForCausalLM
    )
    right = auto.from_pretrained(tmp_path / "None", dtype=torch.bfloat16).state_dict()
    found = auto.from_pretrained(tmp_path / "bfloat16", dtype="auto").state_dict()
    assert found.keys() == right.keys()
    assert all(each.dtype == right[name].dtype and each.equal(right[name]) for name, each in found.items())
    kinds = {name: each.dtype for name, each in load_file(tmp_path / "bfloat16" / "model.safetensors").items()}
    assert {name.rpartition(".")[2] for name, kind in kinds.items() if kind == torch.float32} == (
        {"e_score_correction_bias"} if config else set()
    )
    assert not (tmp_path / "bfloat16" / "optimizer.bin").exists()


def test_a_dtype_needs_an_export() -> None:
    """Fails when the option is taken and has no effect."""
    with pytest.raises(ConfigError, match="--export-dtype is given without --export; add --export with a new folder"):
        make_config({"data": "data", "model": "model", "steps": 1, "export_dtype": "bfloat16"})

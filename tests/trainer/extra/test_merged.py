"""Adapters beside weights that have two names: an embedding that is the output projection, and experts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts import load_script
from transformers_alone import load_transformers

from preshard.schemas.model.languages import LANGUAGES
from preshard.trainer.extra.adapters import write
from preshard.trainer.extra.parts import Lora
from preshard.trainer.families.family import has_transformers
from preshard.trainer.models.interface import base_names
from preshard.trainer.models.load import empty_model, load_model

LORA = Lora(rank=2, alpha=4)


@cache
def steps() -> Any:
    return load_script(Path(__file__).parents[1] / "models" / "steps.py")


def test_a_merged_model_keeps_the_embedding_as_its_output_projection(tmp_path: Path) -> None:
    """Fails when ``config.json`` says that they differ and only one is there: the other would be drawn at random."""
    pytest.importorskip("peft")
    [folder] = steps().write_models(tmp_path / "settings", ["llama"], tie_word_embeddings=True).values()
    load_model(folder, from_scratch=True).save_pretrained(tmp_path / "model")
    wrapped: Any = LORA.wrap(load_model(tmp_path / "model"))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            parameter.add_(0.1 if "lora" in name else 0.0)
    whole = {name: each.clone() for name, each in wrapped.state_dict().items()}  # as if gathered from ranks
    write(wrapped, whole, tmp_path / "model", tmp_path / "merged", lora=LORA, keep_adapters=False)
    auto = load_transformers().AutoModelForCausalLM
    made, info = auto.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not info["missing_keys"]
    assert made.config.tie_word_embeddings
    tokens = torch.arange(10, 30)[None]
    right = wrapped.merge_and_unload()
    right.set_attn_implementation("sdpa")
    with torch.no_grad():
        torch.testing.assert_close(made(tokens).logits, right(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not has_transformers(LANGUAGES["deepseek_v3"].since), reason="needs newer transformers")
def test_names_without_adapters_are_those_of_the_model(tmp_path: Path) -> None:
    """Fails when experts, whose adapters ``peft`` puts around each other, get no weights from the model's folder."""
    pytest.importorskip("peft")
    [folder] = steps().write_models(tmp_path, ["deepseek_v3"], num_hidden_layers=2).values()
    plain, wrapped = empty_model(folder), LORA.wrap(empty_model(folder))
    nested = [name for name, _ in wrapped.named_parameters() if name.count("base_layer.") > 1]
    assert nested
    own = [f"base_model.model.{name}" for name, _ in (*plain.named_parameters(), *plain.named_buffers())]
    assert sorted(base_names(wrapped).values()) == sorted(own)

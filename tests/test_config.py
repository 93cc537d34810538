"""Settings that a configuration takes from the folder of its model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.report.advice.model import folder_sizes
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    write_model_folder(folder, "qwen3_vl", vocabulary=400)
    return str(folder)


def test_costs_are_those_of_the_model_folder(model: str) -> None:
    """Fails when a tiny model is packed for, and advised, by the dimensions of one with eight billion parameters."""
    sizes, cost = folder_sizes(model), load_config(None, [f"model={model}"]).cost
    assert (sizes.hidden, sizes.vision_width) != (PackConfig().cost.hidden_size, PackConfig().cost.vision_hidden_size)
    found = (cost.hidden_size, cost.num_layers, cost.num_attention_heads, cost.num_key_value_heads, cost.vocab_size)
    assert found == (sizes.hidden, sizes.layers, sizes.heads, sizes.kv_heads, sizes.vocab)
    assert (cost.vision_hidden_size, cost.vision_num_layers) == (sizes.vision_width, sizes.vision_layers)
    assert cost.link_gb_per_s == PackConfig().cost.link_gb_per_s, "no folder says how fast links are"


def test_a_cost_that_is_given_stays(model: str, tmp_path: Path) -> None:
    """Fails when the folder decides over the configuration file or over --set."""
    file = tmp_path / "pack.yaml"
    file.write_text("cost: {num_layers: 7}\n", encoding="utf-8")
    cost = load_config(file, [f"model={model}", "cost.hidden_size=128"]).cost
    assert (cost.num_layers, cost.hidden_size) == (7, 128)
    assert cost.head_dim == folder_sizes(model).head_dim


def test_a_folder_with_other_names_of_dimensions_is_packed_for(tmp_path: Path) -> None:
    """Fails when a model can no longer be packed for, as its config.json calls a dimension by another name."""
    write_model_folder(tmp_path, "qwen3", vocabulary=400)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["model_width"] = config.pop("hidden_size")
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_config(None, [f"model={tmp_path}"]).cost == PackConfig().cost
    with pytest.raises(ConfigError, match="hidden_size"):
        folder_sizes(str(tmp_path))

"""Layers of a model that have a window, where ``config.json`` does not list them: as `transformers` decides."""

from __future__ import annotations

import pytest
from transformers_alone import load_transformers

from preshard.schemas.errors import ConfigError
from preshard.schemas.model.followed import layer_masks
from preshard.schemas.model.languages import LANGUAGES

LAYERS = 13
LONG = 2**40
"""Tokens of packs that no window is as long as."""


@pytest.mark.parametrize("kind", sorted(name for name, model in LANGUAGES.items() if model.windowed))
def test_layers_without_a_list_are_those_of_transformers(kind: str) -> None:
    """Fails when a model is balanced for other numbers of layers than it has."""
    nested = kind.endswith("_vl_text")
    given = {"num_hidden_layers": LAYERS, "sliding_window": 96, "use_sliding_window": True, "max_window_layers": 4}
    if not kind.startswith("qwen"):
        given = {"num_hidden_layers": LAYERS, "sliding_window": 96}
    kinds = (
        getattr(load_transformers().AutoConfig.for_model(kind, **given), "layer_types", None)
        or ["sliding_attention"] * LAYERS
    )
    config = {"model_type": "qwen2_5_vl", "text_config": {"model_type": kind, **given}}
    found = layer_masks(config if nested else {"model_type": kind, **given}, LONG, "model")
    assert found is not None
    assert (found.full_layers, found.window_layers, found.window, found.groups) == (
        kinds.count("full_attention"), kinds.count("sliding_attention"), 96, LANGUAGES[kind].groups
    )  # fmt: skip


def test_a_list_of_layers_decides() -> None:
    """Fails when a list is passed over, or a model without windowed layers has two masks."""
    config = {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 8}
    found = layer_masks({**config, "layer_types": ["full_attention", *["sliding_attention"] * 2]}, LONG, "model")
    assert found is not None
    assert (found.full_layers, found.window_layers) == (1, 2)
    assert layer_masks({**config, "layer_types": ["full_attention"] * 3}, LONG, "model") is None
    assert layer_masks({**config, "num_hidden_layers": 4}, LONG, "model") is None, "max_window_layers is 28"
    assert layer_masks({"model_type": "llama", "num_hidden_layers": 4}, LONG, "model") is None


def test_what_says_nothing_of_its_layers_is_refused() -> None:
    """Fails when layers are guessed."""
    with pytest.raises(ConfigError, match=r"^model: config.json of cwm has no layer_types.*save_pretrained"):
        layer_masks({"model_type": "cwm", "num_hidden_layers": 4}, LONG, "model")
    with pytest.raises(ConfigError, match=r"^model: config.json of mistral has no num_hidden_layers"):
        layer_masks({"model_type": "mistral"}, LONG, "model")

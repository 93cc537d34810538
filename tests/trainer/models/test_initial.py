"""A new model's weights."""

from __future__ import annotations

import pytest
import torch

from trainer.models.config import ModelConfig
from trainer.models.model import build_model


def test_a_new_model_depends_on_the_seed_alone(small_config: ModelConfig) -> None:
    """Fails when initial weights depend on the global generator, the dtype, or what was made before them."""
    torch.manual_seed(5)
    first = build_model(small_config, seed=3).state_dict()
    state = torch.get_rng_state()
    second = build_model(small_config, seed=3, dtype=torch.float64).state_dict()
    assert state.equal(torch.get_rng_state()), "the global generator was used"
    assert all(tensor.double().equal(second[name]) for name, tensor in first.items())
    deeper = small_config.model_copy(update={"decoder": small_config.decoder.model_copy(update={"vocab_size": 300})})
    assert build_model(deeper, seed=3).vision.patch_embedding.weight.equal(first["vision.patch_embedding.weight"])
    other = build_model(small_config, seed=4).state_dict()
    assert not any(tensor.equal(other[name]) for name, tensor in first.items() if tensor.ndim > 1)


def test_a_new_model_does_not_depend_on_the_ambient_dtype(small_config: ModelConfig) -> None:
    """Fails when numbers are drawn in torch's default dtype, of which each has its own."""
    expected = build_model(small_config, seed=3).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        found = build_model(small_config, seed=3).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(tensor.equal(found[name]) for name, tensor in expected.items())


def test_the_scale_of_initial_weights(small_config: ModelConfig) -> None:
    """Fails when the scale of the weights no longer follows the rule, which depends on inputs and depth."""
    weight = build_model(small_config, seed=0).decoder.layers[0].attention.q_proj.weight
    assert weight.std().item() == pytest.approx(24**-0.5, rel=0.05)
    assert weight.abs().max().item() <= 24**-0.5 * 3**0.5
    residual = build_model(small_config, seed=0).decoder.layers[1].mlp.down_proj.weight
    assert residual.std().item() == pytest.approx((40 * 4) ** -0.5, rel=0.05)

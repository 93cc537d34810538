"""A PackedModel as the module that other people's code expects, with and without adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.integrations.hugging_face import take_packs
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel

pytestmark = pytest.mark.process  # packing decodes media in a process of its own


def test_what_it_lacks_is_the_models(folder_of: Callable[..., Path], tmp_path: Path) -> None:
    """Fails when code that asks a model for its device or settings, or saves it, has to know of the wrapper."""
    folder = folder_of("qwen3_vl") / "model"
    packed: Any = PackedModel(load_model(folder, dtype=torch.float64))
    assert (packed.device.type, packed.dtype) == ("cpu", torch.float64)
    assert packed.generation_config is packed.inner.generation_config
    packed.gradient_checkpointing_enable()
    assert packed.inner.is_gradient_checkpointing
    packed.save_pretrained(tmp_path)
    again = load_model(tmp_path, dtype=torch.float64).state_dict()
    assert all(torch.equal(again[name], value) for name, value in packed.inner.state_dict().items())
    packed.eval()
    assert not packed.inner.training
    pack = next(iter(PackedDataset(folder.parent / "dataset")))
    output = packed(pack, ContextParallel(), return_dict=True)
    assert torch.equal(output.loss, packed(pack, ContextParallel()))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        packed.nothing_of_the_kind  # noqa: B018
    with pytest.raises(AttributeError, match="model"):
        PackedModel.__new__(PackedModel).model  # noqa: B018


def test_its_state_has_the_names_of_the_model(folder_of: Callable[..., Path], tmp_path: Path) -> None:
    """Fails when a checkpoint of torch, or an optimiser's in it, puts the wrapper's name before the model's."""
    model, fresh = (load_model(folder_of("qwen3") / "model", from_scratch=True, seed=seed) for seed in (1, 2))
    packed, other = PackedModel(model), PackedModel(fresh)
    optimizer = torch.optim.AdamW(packed.parameters())
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in packed.named_parameters()] == names
    assert packed.state_dict().keys() == model.state_dict().keys() == get_model_state_dict(packed).keys()
    assert get_optimizer_state_dict(packed, optimizer)["param_groups"][0]["params"] == names
    dcp.save({"model": packed.state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    state = {"model": fresh.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    other.load_state_dict(state["model"])
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in fresh.state_dict().items())


def test_a_model_with_adapters_is_taken_as_it_is(folder_of: Callable[..., Path]) -> None:
    """Fails when the encoder, the embedding or the blocks are looked for in what ``peft`` has put around the model."""
    peft = pytest.importorskip("peft")
    folder = folder_of("qwen3_vl")
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj", "qkv"], init_lora_weights=False)
    model: Any = peft.get_peft_model(load_model(folder / "model", dtype=torch.float64), config)
    packed, cp = PackedModel(model), ContextParallel()
    bare = PackedModel(model.get_base_model())
    assert packed.blocks == bare.blocks
    assert len(packed.blocks) > 2
    pack = next(pack for pack in PackedDataset(folder / "dataset") if pack.units)
    loss = packed(pack, cp)
    loss.backward()
    assert torch.equal(loss, bare(pack, cp))
    trained = [parameter for parameter in packed.parameters() if parameter.requires_grad]
    assert 0 < len(trained) < len(list(packed.parameters()))
    assert all(parameter.grad is not None for parameter in trained)
    assert torch.equal(take_packs(model, cp)(batch=pack, num_items_in_batch=1.0).loss, loss)
    with model.disable_adapter():
        assert not torch.equal(packed(pack, cp), loss)

"""Unmodified Hugging Face models on packs give what they give for each document alone."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from schemas.errors import ConfigError
from trainer.data import PackedDataset
from trainer.distributed.mesh import ContextParallel, Mesh
from trainer.distributed.sharding import shard_model
from trainer.models import PackedModel, load_model

# This build of torchvision has operators for CUDA alone; what models use of it is plain torch.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

pytestmark = pytest.mark.process  # packing decodes media in a process of its own

CASES = [
    ("qwen3", "ring", "zigzag", 1, 2),
    ("qwen3_vl", "gather", "balanced_gather", 1, 2),
    ("qwen3_vl", "hybrid", "balanced_ring", 2, 2),
    ("molmo2", "ulysses", "contiguous", 2, 1),
    ("molmo2", "ring", "zigzag", 1, 2),
]
"""Each kind of attention and each layout. Among four ranks some have no unit."""

Made = tuple[Path, tuple[float, Tensor], list[int]]


@pytest.fixture(scope="session")
def made(made_once: Any, progress: Any) -> Callable[[str], Made]:
    """``made(family)``: a folder with a model and its packs, loss and gradient of all documents alone, and the sizes of
    the parameters.
    """
    from packed_models import alone, load_original, make_model, whole_packs

    @cache
    def make(family: str) -> Made:
        folder = made_once(f"hugging-face-{family}", lambda folder: make_model(folder, family, progress))
        original = load_original(folder, family)
        total = sum(alone(original, batch) for batch in whole_packs(str(folder / "dataset")))
        assert isinstance(total, Tensor)
        total.backward()
        sizes = [parameter.numel() for parameter in original.parameters()]
        return folder, (total.item(), flat_gradient(original)), sizes

    return make


def flat_gradient(model: torch.nn.Module) -> Tensor:
    """The gradients of all parameters, one after the other; every parameter must have one."""
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not missing, f"no gradient: {missing}"
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat([(g.full_tensor() if isinstance(g, DTensor) else g).double().flatten() for g in grads])


@cache
def _loaded(folder: str) -> Any:
    return load_model(folder, dtype=torch.float64)


def train_on_packs(mesh: Mesh, folder: str, kind: str, layout: str) -> tuple[float, Any, list[int]]:
    """Loss and gradient of all packs, and how many units each held here. Runs on each rank of the pool."""
    packed = PackedModel(load_model(f"{folder}/model", dtype=torch.float64))
    shard_model(packed, packed.blocks, mesh.parameters, bfloat16=False)
    cp = mesh.cp
    dataset = PackedDataset(
        f"{folder}/dataset",
        ulysses_degree=cp.ulysses_degree,
        ring_degree=cp.ring_degree,
        cp_rank=cp.cp_rank,
        layout=layout,
    )
    total, units = 0.0, []
    for batch in dataset:
        loss = packed(batch, cp, attention=kind, features="gather" if kind == "ulysses" else "route")
        loss.backward()
        total += loss.item()
        units.append(len(batch.units))
    gradient = flat_gradient(packed)
    return total, gradient if cp.cp_rank == 0 else None, units


@pytest.mark.parametrize(("family", "kind", "layout", "ulysses", "ring"), CASES)
def test_packs_on_several_ranks_give_what_documents_alone_give(
    gloo_pool: Any, made: Callable[[str], Made], family: str, kind: str, layout: str, ulysses: int, ring: int
) -> None:
    """Fails when positions, mask, features or their way to the tokens are not those of the model, when deep features
    reach another layer, or when a parameter has no gradient on a rank without a unit.
    """
    from packed_models import difference

    folder, right, sizes = made(family)
    ranks = gloo_pool.run(train_on_packs, str(folder), kind, layout, ulysses=ulysses, ring=ring)
    found = sum(loss for loss, _, _ in ranks), ranks[0][1]
    assert difference(found, right, sizes) < 1e-6
    units = torch.tensor([units for _, _, units in ranks])
    assert (units.sum(0) > 0).any() == (family != "qwen3")
    if ulysses * ring == 4:
        assert (units == 0).any(), "every rank had a unit in every pack"


def test_a_wrong_axis_is_seen(made: Callable[[str], Made]) -> None:
    """Fails when the comparison could not tell an exchange of two axes of positions."""
    folder, right, _ = made("qwen3_vl")
    packed = PackedModel(_loaded(str(folder / "model")))
    total = 0.0
    with torch.no_grad():
        for batch in PackedDataset(folder / "dataset"):
            total += packed(replace(batch, position_ids=batch.position_ids[[0, 2, 1]]), ContextParallel()).item()
    assert abs(total - right[0]) / right[0] > 1e-6


def test_random_weights_do_not_depend_on_the_dtype(made: Callable[[str], Made]) -> None:
    """Fails when random weights are drawn in the dtype, follow the ambient one, or when rotary frequencies are cut to
    bfloat16.
    """
    folder = made("qwen3")[0] / "model"
    low, high = (load_model(folder, dtype=dtype, from_scratch=True) for dtype in (torch.bfloat16, torch.float32))
    for ours, theirs in zip(low.parameters(), high.parameters(), strict=True):
        assert ours.equal(theirs.to(torch.bfloat16))
    assert low.model.rotary_emb.inv_freq.equal(high.model.rotary_emb.inv_freq)


def test_what_does_not_fit_is_said_in_one_line(made: Callable[[str], Made], tmp_path: Path) -> None:
    """Fails when a folder without weights, a model of another kind, or a dataset of another model is taken."""
    with pytest.raises(ConfigError, match="give a model folder"):
        load_model(tmp_path)
    text, vision = made("qwen3")[0], made("qwen3_vl")[0]
    (tmp_path / "config.json").write_bytes((text / "model" / "config.json").read_bytes())
    with pytest.raises(ConfigError, match="holds no weights"):
        load_model(tmp_path)
    batch = next(iter(PackedDataset(vision / "dataset")))
    with pytest.raises(ConfigError, match="was packed for a qwen3_vl model and the model is qwen3"):
        PackedModel(_loaded(str(text / "model")))(batch, ContextParallel())
    for config, said in (
        ({"model_type": "clip"}, "model_type 'clip' is not supported"),
        ({"model_type": "gemma2"}, "final_logit_softcapping is 30.0"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=said):
            load_model(tmp_path, from_scratch=True)

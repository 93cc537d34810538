"""The model sharded over ranks of which some, or all, hold no crop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from trainer.attention import MaskTensors, bind
from trainer.data.dataset import PackedDataset
from trainer.distributed.mesh import ContextParallel, Mesh
from trainer.models.config import ModelConfig
from trainer.models.features import bind_features
from trainer.models.model import VisionLanguageModel, build_model

KEPT = ("vision.patch_embedding.weight", "vision.blocks.1.up_proj.weight", "connector.projector.up_proj.weight")
DECODER = ("decoder.embedding.weight", "decoder.layers.0.attention.k_proj.weight", "decoder.output.weight")


def _step(model: VisionLanguageModel, dataset: PackedDataset, pack_id: int, cp: ContextParallel, way: str) -> float:
    batch = next(batch for batch in dataset if batch.pack_id == pack_id)
    labels = torch.where(batch.labels >= 0, batch.labels % 257, batch.labels)
    batch = replace(batch, tokens=batch.tokens % 257, labels=labels)  # a vocabulary whose logits cost little
    attend = bind("hybrid", batch.layout, MaskTensors.of(batch), cp)
    loss = model(batch, attend, bind_features(batch, cp, way))
    loss.backward()
    return loss.item()


def gradients_on_a_rank(
    mesh: Mesh, path: str, pack_id: int, way: str, recompute: bool, config: ModelConfig
) -> dict[str, torch.Tensor | float | int]:
    """Loss, crops and whole gradients of one pack, on a rank of a job that shards everything over all ranks."""
    torch.set_num_threads(1)
    cp = mesh.cp
    dataset = PackedDataset(
        path,
        ulysses_degree=cp.ulysses_degree,
        ring_degree=cp.ring_degree,
        cp_rank=cp.cp_rank,
        layout="balanced_ring",
    )
    model = build_model(config, seed=1, dtype=torch.float64, recompute=recompute)
    for part in [*model.blocks, model]:
        sharded = fully_shard(part, mesh=mesh.parameters)
        sharded.set_gradient_divide_factor(1.0)
    loss = _step(model, dataset, pack_id, cp, way)
    found: dict[str, torch.Tensor | float | int] = {"loss": loss}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter.grad, DTensor), f"{name} has no gradient"
        if name in KEPT + DECODER:
            found[name] = parameter.grad.full_tensor()
    return found


@pytest.mark.parametrize(
    ("kind", "way", "recompute"),
    [("few units", "route", False), ("few units", "gather", True), ("text alone", "route", True)],
)
def test_ranks_without_crops_keep_step(
    gloo_pool: Any,
    packed: Path,
    whole: list[Any],
    small_config: ModelConfig,
    kind: str,
    way: str,
    recompute: bool,
) -> None:
    """Fails, by a time-out, when a rank without crops leaves out a collective and, by its figures, when gradients of
    the encoder are lost or counted twice.
    """
    units = [len(sample.head["cum_image_bounds"]) for sample in whole]
    pack_id = units.index(0) if kind == "text alone" else next(i for i, n in enumerate(units) if 0 < n < 4)
    answers = gloo_pool.run(gradients_on_a_rank, str(packed), pack_id, way, recompute, small_config, ulysses=2, ring=2)
    alone = build_model(small_config, seed=1, dtype=torch.float64)
    loss = _step(alone, PackedDataset(packed), pack_id, ContextParallel(), "route")
    assert sum(answer["loss"] for answer in answers) == pytest.approx(loss, rel=1e-12)
    expected = dict(alone.named_parameters())
    for name in KEPT + DECODER:
        gradient = expected[name].grad
        assert gradient is not None
        assert gradient.any() == (kind != "text alone" or name in DECODER)
        for answer in answers:
            torch.testing.assert_close(answer[name], gradient, rtol=1e-9, atol=1e-11, msg=name)

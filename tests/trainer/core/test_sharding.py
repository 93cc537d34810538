"""Parameters sharded over some of the axes and replicated over the others, with gradients that are sums over all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from preshard.trainer.core.checkpoint import Checkpoints, RunState, load_checkpoint
from preshard.trainer.core.mesh import CpFsdp, Mesh, build_mesh, parameter_ranks
from preshard.trainer.core.sharding import shard_model

WAYS: tuple[CpFsdp, ...] = get_args(CpFsdp)
WIDTH = 8


def make_model() -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, WIDTH)).double()


def loss_of(model: nn.Module, rank: int) -> torch.Tensor:
    """The loss that a rank adds: that of its own tokens."""
    tokens = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    loss: torch.Tensor = model(tokens).square().sum()
    return loss


def _other_names(parameters: DeviceMesh) -> DeviceMesh:
    """The same ranks as someone else's mesh: one axis where there is one replica."""
    ranks = parameters.mesh if len(parameters.mesh) > 1 else parameters.mesh[0]
    return DeviceMesh("cpu", ranks, mesh_dim_names=("outer", "inner")[-ranks.ndim :])


def gradients_of(_mesh: Mesh, degrees: dict[str, int], way: CpFsdp) -> dict[str, Any]:
    """Whole gradients on a rank, its own part of them, and which ranks its mesh says hold a replica."""
    mesh = build_mesh("cpu", **degrees, cp_fsdp=way)
    model = make_model()
    shard_model(model, [model[0], model[2]], _other_names(mesh.parameters), bfloat16=False)
    for _ in range(2):  # a second micro-batch adds to the first one's gradients
        loss_of(model, dist.get_rank()).backward()
    own: dict[str, Any] = {"replica": mesh.replica, "column": mesh.parameters.get_local_rank("shard")}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        own[name] = parameter.grad.to_local(), parameter.grad.full_tensor(), parameter.numel()
    return own


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_one_process_whatever_shards_the_parameters(way: CpFsdp, gloo_pool: Any) -> None:
    """Fails when gradients are not summed over an axis that does not shard, are summed twice, or are averaged; when
    replicas get different bits; or when a rank holds more than its part.
    """
    degrees = {"dp_replicate": 1, "dp_shard": 1, "ring_degree": 2, "ulysses_degree": 2}
    answers = gloo_pool.run(gradients_of, degrees, way, ring=2, ulysses=2)
    alone = make_model()
    (2 * sum(loss_of(alone, rank) for rank in range(4))).backward()
    parts = {"all": 4, "ulysses_only": 2, "ring_only": 2, "none": 1}[way]
    assert len(answers[0]["replica"]) == parts
    for name, parameter in alone.named_parameters():
        squares = sum(float(answers[rank][name][0].square().sum()) for rank in answers[0]["replica"])
        assert parameter.grad is not None
        assert squares == pytest.approx(float(parameter.grad.square().sum()), rel=1e-12)
        for answer in answers:
            mine, whole, numel = answer[name]
            torch.testing.assert_close(whole, parameter.grad, rtol=1e-12, atol=1e-12)
            assert mine.numel() <= -(-len(parameter) // parts) * (numel // len(parameter))
            peer = next(other for other in answers if other["column"] == answer["column"])
            assert torch.equal(mine, peer[name][0])


Way = tuple[CpFsdp, bool]
"""Axes that shard the parameters, and whether these stay on the host."""


def after_another_way(_mesh: Mesh, folder: str, ways: tuple[Way, Way]) -> list[torch.Tensor]:
    """Parameters and moments, whole, of a run that goes on in another way: those saved, then those loaded."""
    found: list[torch.Tensor] = []
    for step, (way, on_host) in enumerate(ways):
        mesh = build_mesh("cpu", dp_replicate=1, dp_shard=1, ring_degree=2, ulysses_degree=2, cp_fsdp=way)
        model = make_model()
        shard_model(model, [model[0], model[2]], mesh.parameters, bfloat16=False, on_host=on_host)
        optimizer = torch.optim.AdamW(model.parameters())
        if step == 0:
            loss_of(model, dist.get_rank()).backward()
            optimizer.step()
            optimizer.zero_grad()
            Checkpoints(Path(folder), keep=1).save(model, optimizer, RunState(step=1, data={}, model={}))
        else:
            load_checkpoint(Path(folder) / "step-00000001", model, optimizer)
        parts = [*model.parameters(), *(state["exp_avg"] for state in optimizer.state.values())]
        found.append(torch.cat([part.full_tensor().detach().flatten() for part in parts]))
    return found


@pytest.mark.parametrize(
    "ways",
    [
        (("all", False), ("ring_only", True)),
        (("none", True), ("ulysses_only", False)),
        pytest.param((("all", True), ("all", True)), marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_in_another_way(ways: tuple[Way, Way], gloo_pool: Any, tmp_path: Path) -> None:
    """Fails when a checkpoint binds a run to the axes that sharded its parameters, or to where these were."""
    for saved, loaded in gloo_pool.run(after_another_way, str(tmp_path / "kept"), ways, ring=2, ulysses=2):
        assert torch.equal(saved, loaded)


def test_ranks_of_a_replica_are_those_of_the_sharding_axes() -> None:
    """Fails when an axis is taken for another: ranks that hold the same part would add different ones."""
    degrees = (2, 1, 2, 2)
    assert parameter_ranks(degrees, "all").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert parameter_ranks(degrees, "ulysses_only").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert parameter_ranks(degrees, "ring_only").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert parameter_ranks(degrees, "none").tolist() == [[rank] for rank in range(8)]
    assert parameter_ranks((1, 2, 2, 2), "ring_only").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]

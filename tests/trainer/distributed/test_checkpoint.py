"""What a checkpoint holds of an optimiser."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from preshard.trainer.distributed.checkpoint import (
    Checkpoints,
    RunState,
    SaveError,
    load_checkpoint,
)
from preshard.trainer.distributed.mesh import Mesh
from preshard.trainer.distributed.sharding import shard_model


def steps_after_a_save(mesh: Mesh, folder: str, learned: bool) -> tuple[set[float], set[float]]:
    """AdamW's count of steps after a checkpoint was saved, and in another optimiser that loads it."""
    counts = []
    for saves in (True, False):
        model = nn.Linear(3, 2)
        shard_model(model, [], mesh.parameters, bfloat16=False)
        optimizer = torch.optim.AdamW(model.parameters())
        if saves:
            if learned:
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            Checkpoints(Path(folder), keep=1).save(model, optimizer, RunState(step=1, data={}, model={}))
        else:
            load_checkpoint(Path(folder) / "step-00000001", model, optimizer)
        counts.append({float(state["step"]) for state in optimizer.state.values()})
    return counts[0], counts[1]


def failures_of_saves(mesh: Mesh, folder: str, beside: bool, where: str) -> list[str]:
    """What each rank is told when the second checkpoint cannot be written on one of them."""
    model = nn.Linear(3, 2)
    shard_model(model, [], mesh.parameters, bfloat16=False)
    optimizer, said = torch.optim.AdamW(model.parameters()), []
    saves = Checkpoints(Path(folder), keep=2, beside=beside)
    for step in (1, 2, 3):
        full = step == 2 and (where == "everywhere" or dist.get_rank() == 1)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 if full else before[0], before[1]))
        try:
            saves.save(model, optimizer, RunState(step=step, data={}, model={}))
            saves.finish()
        except SaveError as error:
            said.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            dist.barrier()
    return said


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("where", ["rank 1", "everywhere"])
def test_a_full_disk_ends_every_rank_with_one_line(gloo_pool: Any, tmp_path: Path, beside: bool, where: str) -> None:
    """Fails when a disk that is full for one rank leaves the others waiting, ends in torch's traceback, takes the
    checkpoint before with it, or leaves something that stops the next save.
    """
    for said in gloo_pool.run(failures_of_saves, str(tmp_path), beside, where, dp_shard=2):
        [line] = said
        assert line.startswith(f"the checkpoint after step 2 cannot be written to {tmp_path} (")
        assert line.endswith("and step-00000001 is whole: free some space there, then use --resume")
        assert "\n" not in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_saving_is_no_step(gloo_pool: Any, tmp_path: Path) -> None:
    """Fails when a checkpoint before the first step with a loss makes AdamW count a step, which changes its bias."""
    assert gloo_pool.run(steps_after_a_save, str(tmp_path / "new"), False) == [({0.0}, {0.0})]
    assert gloo_pool.run(steps_after_a_save, str(tmp_path / "learned"), True) == [({1.0}, {1.0})]

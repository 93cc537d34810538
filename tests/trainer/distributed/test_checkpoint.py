"""What a checkpoint holds of an optimiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.distributed.checkpoint import Checkpoints, RunState, load_checkpoint
from trainer.distributed.mesh import Mesh
from trainer.distributed.sharding import shard_model


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


def test_saving_is_no_step(gloo_pool: Any, tmp_path: Path) -> None:
    """Fails when a checkpoint before the first step with a loss makes AdamW count a step, which changes its bias."""
    assert gloo_pool.run(steps_after_a_save, str(tmp_path / "new"), False) == [({0.0}, {0.0})]
    assert gloo_pool.run(steps_after_a_save, str(tmp_path / "learned"), True) == [({1.0}, {1.0})]

"""What a run exports is the model that it trained."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))  # the ranks of the pool load this file by its path

from trainer.config import make_config
from trainer.data import PackedDataset
from trainer.distributed.mesh import Mesh
from trainer.loop import run
from trainer.setup import prepare


def train(mesh: Mesh, options: dict[str, object]) -> list[dict[str, Any]]:
    """Runs on each rank of the pool."""
    found: list[dict[str, Any]] = []
    job = prepare(make_config(options), rank=dist.get_rank(), world_size=dist.get_world_size())
    run(job, mesh, torch.device("cpu"), lambda step: found.append(asdict(step)))
    return found


def test_the_export_has_the_loss_of_the_next_step(gloo_pool: Any, lessons: Path, tmp_path: Path) -> None:
    """Fails when a rank's part of a weight is missing from the export, is from before the last step, or has a name that
    ``from_pretrained`` does not know.
    """
    from packed_models import alone, load_original

    folder, common = lessons.with_name("model"), {"dtype": "float64", "min_lr": 1.0, "warmup": 0, "from_scratch": True}
    options = {"data": str(lessons), "model": str(folder), "ring": 2, "layout": "zigzag", **common}
    gloo_pool.run(train, {**options, "steps": 2, "export": str(tmp_path / "model")}, ring=2)
    assert {path.name for path in folder.iterdir()} < {path.name for path in (tmp_path / "model").iterdir()}
    next_step = gloo_pool.run(train, {**options, "steps": 3}, ring=2)[0][2]
    batch = next(batch for batch in PackedDataset(lessons) if [batch.pack_id] == next_step["packs"])
    with torch.no_grad():
        loss = alone(load_original(tmp_path, "qwen3_vl"), batch).item() / next_step["loss_weight"]
    assert loss == pytest.approx(next_step["loss"], rel=1e-7)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

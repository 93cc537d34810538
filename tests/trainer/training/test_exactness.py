"""Training on several processes gives what one process gives: a selection of the grid, and what its packs hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grid
import pytest

from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.order import epoch_order

STEPS = 2
"""The loss of a step shows the parameters of the step before; more steps add time and no new code."""
FAST = [
    "ulysses/contiguous/u2r1d1",
    "hybrid/balanced_ring/u2r2d1",
    "ring/balanced_gather/u1r1d2",
    "ring/zigzag/u1r2d1a2",
    "ulysses/contiguous/u2r1d1-overlap",
    "gather/zigzag/u1r2d1-overlap-stride1",
    "gather/balanced_gather/u1r2d1",
]
"""Every kind and every layout, two packs per step at once and one after the other, and the options that move the same
numbers in another way. Four processes as replicas of pairs are in test_resume_training.py, as shards of pairs in
models/test_hugging_face.py, gradients under every way to shard in distributed/test_sharding.py.
"""
IN_FLOAT32 = ["gather/balanced_gather/u1r2d1"]


def test_the_packs_hold_what_makes_it_hard(lessons: Path) -> None:
    """Fails when the dataset no longer holds what the exactness tests are about."""
    order = epoch_order(len(PackedDataset(lessons)), window=4, seed=0, epoch=0)
    packs = sorted(PackedDataset(lessons), key=lambda batch: batch.pack_id)
    used = [packs[i] for i in order[:STEPS]]
    assert sum(len(batch.units) > 1 for batch in used) >= 2
    assert any(bool(batch.branch_ids.max() > 1) for batch in used)
    assert sum(int(batch.doc_ids.max()) >= 1 for batch in used) >= 2
    assert any(int(batch.doc_ids.max()) >= 2 for batch in used)
    assert any(bool((batch.doc_ids < 0).any()) for batch in used)
    assert any(0 < len(batch.units) < 4 for batch in used)  # of 4 ranks one encodes nothing
    assert any(len(set(batch.loss_weights.tolist())) > 2 for batch in used)


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-9), ("float32", 1e-5)])
def test_loss_and_gradient_do_not_depend_on_the_processes(
    gloo_pool: Any, lessons: Path, dtype: str, limit: float
) -> None:
    """Fails when a kind of attention, a layout, the normalisation or FSDP's sums are not exact on a split."""
    names = FAST if dtype == "float64" else IN_FLOAT32
    cases = [case for case in grid.full_grid() if case.name in names]
    assert len(cases) == len(names)
    settings = grid.Settings(dataset=str(lessons), dtype=dtype, steps=STEPS)
    differences = grid.compare(cases, grid.run_cases(gloo_pool, [*grid.references(cases), *cases], settings))
    assert all(found <= limit for found in differences.values()), differences
    # sums in different orders: equality to the last bit everywhere would mean that nothing was split
    assert max(differences.values()) > 0

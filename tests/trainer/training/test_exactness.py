"""Training on several processes is training on one: a selection of the grid, and what its packs hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.data.dataset import PackedDataset
from trainer.data.order import epoch_order

STEPS = 10
FAST = [
    "ring/zigzag/u1r2d1",
    "gather/balanced_gather/u1r2d1",
    "ulysses/contiguous/u2r1d1",
    "hybrid/balanced_ring/u2r2d1",
    "ring/balanced_gather/u1r2d2",
    "gather/balanced_gather/u1r2d1x2",
    "ring/zigzag/u1r2d1a2",
    "hybrid/balanced_ring/u2r4d1",
]
"""Every kind and every layout, splits of 2, 4 and 8 processes, and each way to two packs a step."""


def test_the_packs_hold_what_makes_it_hard(lessons: Path) -> None:
    """Fails when the lessons lose what the exactness tests are about."""
    order = epoch_order(len(PackedDataset(lessons)), window=4, seed=0, epoch=0)
    packs = sorted(PackedDataset(lessons), key=lambda batch: batch.pack_id)
    used = [packs[i] for i in order[:STEPS]]
    assert sum(len(batch.images) > 1 for batch in used) >= 3
    assert sum(bool(batch.branch_ids.max() > 1) for batch in used) >= 2
    assert sum(int(batch.doc_ids.max()) >= 1 for batch in used) >= 5
    assert any(int(batch.doc_ids.max()) >= 2 for batch in used)
    assert sum(bool((batch.doc_ids < 0).any()) for batch in used) >= 3
    assert any(0 < len(batch.images) < 8 for batch in used)  # of 8 ranks some encode nothing
    assert sum(len(set(batch.loss_weights.tolist())) > 2 for batch in used) >= 2


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-9), ("float32", 1e-5)])
def test_loss_and_gradient_do_not_depend_on_the_processes(grid: Callable[..., Any], dtype: str, limit: float) -> None:
    """Fails when a kind of attention, a layout, the normalisation or FSDP's sums are not exact on a split."""
    cases = FAST if dtype == "float64" else FAST[:4]
    done = grid("--json", "--dtype", dtype, "--steps", str(STEPS), "--cases", *cases)
    assert done.returncode == 0, done.stderr + done.stdout
    differences = json.loads(done.stdout)
    assert set(differences) == set(cases)
    assert max(differences.values()) <= limit
    # different sums in different orders: equal to the last bit everywhere would mean that nothing was split
    assert max(differences.values()) > 0

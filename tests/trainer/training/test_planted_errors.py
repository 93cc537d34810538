"""The comparison with one process finds mistakes that a single rank makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import grid
import pytest
import torch
from planted import exchange_images

from preshard.trainer.data.dataset import PackedDataset

MISTAKES = ["label-shift", "loss-weight", "rope-position", "layout-run", "boundary-order"]
EXACT = "ring/balanced_ring/u1r2d1"


def count_steps(dataset: Path, case: grid.Case) -> int:
    """Steps up to the first in which the last rank's crops in another order are other crops."""
    size = {"ulysses_degree": case.ulysses, "ring_degree": case.ring, "cp_rank": case.ulysses * case.ring - 1}
    for step, batch in enumerate(PackedDataset(dataset, dp_rank=0, dp_size=1, layout=case.layout, **size), start=1):
        if not torch.equal(exchange_images(batch).pixels, batch.pixels):
            return step
    pytest.fail("in no pack does the last rank have two different crops of one size")


@pytest.fixture(scope="module")
def differences(request: pytest.FixtureRequest, gloo_pool: Any, lessons: Path) -> dict[str, float]:
    """Relative difference from one process, by mistake that is run."""
    run = [item.callspec.params["mistake"] for item in request.session.items if item.path == request.path]
    [right] = [case for case in grid.full_grid() if case.name == EXACT]
    cases = [replace(right, plant=mistake) for mistake in run]
    steps = count_steps(lessons, right) if "boundary-order" in run else 1
    settings = grid.Settings(dataset=str(lessons), dtype="float64", steps=steps)
    found = grid.run_cases(gloo_pool, [*grid.references(cases), *cases], settings)
    return {str(case.plant): value for case, value in grid.compare(cases, found).items()}


@pytest.mark.parametrize(
    "mistake", [pytest.param(name, marks=[pytest.mark.slow] * (name != "loss-weight")) for name in MISTAKES]
)
def test_a_mistake_of_one_rank_is_found(differences: dict[str, float], mistake: str) -> None:
    """Fails when the exactness test would pass although a rank shifts its labels again, changes its loss weights, uses
    other positions, has two runs of the layout exchanged, or encodes its crops in another order.
    """
    assert differences[mistake] > 1e-6

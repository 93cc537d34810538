"""The comparison with one process, run as its script, finds mistakes that a single rank makes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

MISTAKES = ["label-shift", "loss-weight", "rope-position", "layout-run", "boundary-order"]


@pytest.fixture(scope="module")
def differences(grid: Callable[..., Any]) -> dict[str, float]:
    """Relative difference from one process, by mistake."""
    case = "ring/balanced_ring/u1r2d1"
    done = grid("--json", "--steps", "2", "--cases", case, "--plant", *MISTAKES)
    assert done.returncode == 1, done.stderr  # the script's exit status when a case is not exact
    return {name.rpartition("+")[2]: value for name, value in json.loads(done.stdout).items()}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_one_rank_is_found(differences: dict[str, float], mistake: str) -> None:
    """Fails when the exactness test would pass although a rank shifts its labels again, changes its loss weights, uses
    other positions, has two runs of the layout exchanged, or encodes its crops in another order.
    """
    assert differences[mistake] > 1e-6

"""The least possible largest load against every way to cut."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from preshard.packer_service.verify.independent.layouts import least_largest_load
from preshard.schemas.boundaries import smallest_limit


def by_force(loads: list[int], parts: int) -> int:
    cuts = combinations(range(len(loads) + 1), parts - 1)
    return min(max(sum(loads[a:b]) for a, b in pairwise([0, *cut, len(loads)])) for cut in cuts)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_the_least_of_every_way_to_cut(parts: int) -> None:
    """Fails when the search for the meeting point is off by one, or loads of zero mislead it."""
    rng = np.random.default_rng(parts)
    for units in range(5, 9):
        for _ in range(40):
            loads = rng.integers(0, 6, units).tolist()
            assert least_largest_load(loads, parts) == by_force(loads, parts)


def test_few_units_and_many_parts() -> None:
    """Fails when a part without a unit counts, or a pack without an image has a load."""
    assert least_largest_load([], 4) == 0
    assert least_largest_load([384], 4) == 384
    assert least_largest_load([3, 9, 3], 4) == 9


def test_bisection_and_dynamic_programming_agree() -> None:
    """Fails when either is wrong on long lists, where no brute force reaches."""
    rng = np.random.default_rng(0)
    for parts in (2, 8, 64):
        loads = rng.integers(1, 10, 3000).tolist()
        assert least_largest_load(loads, parts) == smallest_limit(loads, parts)

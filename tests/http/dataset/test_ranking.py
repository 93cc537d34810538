"""A part of an order equals that part of the whole order."""

from __future__ import annotations

import numpy as np
import pytest

from preshard.packer_service.http.dataset.ranking import FEW, ranked


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kinds", [3, 1000, 10**9])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_a_part_of_the_order_is_that_of_a_stable_sort(descending: bool, kinds: int, missing: float) -> None:
    """Fails when equal values lose their order, when nan is not last, or when a part begins elsewhere."""
    rng = np.random.default_rng(kinds)
    values = rng.integers(0, kinds, FEW + 1000).astype(np.float64)
    values[rng.random(len(values)) < missing] = np.nan
    whole = np.argsort(-values if descending else values, kind="stable")
    parts = [slice(0, 50), slice(len(values) - 30, len(values) + 20), slice(len(values) + 5, len(values) + 9)]
    parts += [slice(first, first + 50) for first in rng.integers(0, len(values), 5).tolist()]
    for part in parts:
        assert ranked(values, part, descending=descending).tolist() == whole[part].tolist()
    whole_numbers = rng.integers(0, kinds, FEW + 1000)
    whole = np.argsort(-whole_numbers if descending else whole_numbers, kind="stable")
    assert ranked(whole_numbers, slice(100, 200), descending=descending).tolist() == whole[100:200].tolist()


def test_few_values_are_sorted_and_none_are_none() -> None:
    """Fails when an empty list, or one below the limit, is ordered otherwise."""
    assert ranked(np.zeros(0), slice(0, 50), descending=False).tolist() == []
    assert ranked(np.array([2, 1, 2, 0]), slice(1, 4), descending=True).tolist() == [2, 1, 3]

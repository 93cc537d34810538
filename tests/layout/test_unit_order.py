"""The stored order of units against every other order, and against that of tokens."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from preshard.packer_service.layout.unit_order import balanced_order
from preshard.schemas.boundaries import image_edges, smallest_limit


def _limits(loads: np.ndarray, sizes: tuple[int, ...]) -> list[int]:
    return [smallest_limit(loads.tolist(), size) for size in sizes]


@pytest.mark.parametrize(("units", "sizes"), [(5, (2, 4)), (6, (2, 4)), (6, (3, 6)), (6, (1, 2, 4, 8))])
def test_a_small_pack_has_the_best_of_all_orders(units: int, sizes: tuple[int, ...]) -> None:
    """Fails when some order that is worse than tokens at no size has a smaller sum of imbalances."""
    rng, gained = np.random.default_rng(units + len(sizes)), 0
    for _ in range(6):
        loads = rng.integers(1, 14, units)
        in_tokens = _limits(loads, sizes)
        best = sum(np.array(in_tokens) * sizes)
        for order in permutations(loads.tolist()):
            found = _limits(np.array(order), sizes)
            if all(limit <= most for limit, most in zip(found, in_tokens, strict=True)):
                best = min(best, sum(np.array(found) * sizes))
        ours = sum(np.array(_limits(loads[balanced_order(loads, sizes)], sizes)) * sizes)
        assert ours == best, loads
        gained += ours < sum(np.array(in_tokens) * sizes)
    assert gained, "an order better than that of tokens"


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8, 16), (3, 4, 6), (5, 7)])
def test_no_size_is_worse_than_in_the_order_of_tokens(sizes: tuple[int, ...]) -> None:
    """Fails when sizes that do not divide each other pay for one another, or units get lost."""
    rng, gained = np.random.default_rng(0), 0
    for _ in range(20):
        loads = rng.integers(1, 14, int(rng.integers(1, 60))) * 1_000_003
        order = balanced_order(loads, sizes)
        assert np.array_equal(np.sort(order), np.arange(len(loads)))
        ours, theirs = _limits(loads[order], sizes), _limits(loads, sizes)
        assert all(a <= b for a, b in zip(ours, theirs, strict=True))
        gained += ours != theirs
    assert gained > 10


def test_units_ascend_where_no_share_ends() -> None:
    """Fails when units of one share lie in another order than their tokens, which would tear videos apart."""
    loads = np.random.default_rng(1).integers(1, 14, 40)
    order = balanced_order(loads, (2, 4))
    ends = {0, *(int(edge) for size in (2, 4) for edge in image_edges(loads[order], size))}
    assert order.tolist() != sorted(order)
    assert {at + 1 for at in np.flatnonzero(np.diff(order) < 0).tolist()} <= ends


def test_the_order_of_tokens_stays_where_another_gains_too_little() -> None:
    """Fails when the price of sending features is ignored, or taken for more than it is."""
    loads = np.array([1, 1, 5, 5])
    assert _limits(loads, (2,)) == [7]
    assert _limits(loads[balanced_order(loads, (2,))], (2,)) == [6]  # saves 1 for each of 2 ranks
    assert balanced_order(loads, (2,), price=1).tolist() != [0, 1, 2, 3]
    assert balanced_order(loads, (2,), price=2).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("loads", [[], [3], [4, 4, 4], [0, 0]])
def test_nothing_to_gain_keeps_the_order(loads: list[int]) -> None:
    """Fails when packs of text, or of frames alone, are stored in another order for nothing."""
    assert balanced_order(np.array(loads, np.int64), (1, 2, 4)).tolist() == list(range(len(loads)))

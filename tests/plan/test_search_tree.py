import numpy as np
import pytest

from preshard.packer_service.plan.best_fit import GONE, build_tree, first_at_most, set_value


def _scan(values: np.ndarray, position: int, limit: int) -> int:
    hits = np.flatnonzero(values[position:] <= limit)
    return int(hits[0]) + position if len(hits) else -1


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 33])
def test_every_search_agrees_with_a_scan_while_values_disappear(n: int) -> None:
    """Fails when the climb leaves the tree at its right edge, or when a removal leaves a stale minimum above it."""
    rng = np.random.default_rng(n)
    values = rng.integers(0, 6, n)
    tree = build_tree(values.astype(np.int64))
    for gone in rng.permutation(n):
        for position in range(n + 1):
            for limit in range(-1, 7):
                assert first_at_most(tree, position, limit) == _scan(values, position, limit)
        values[gone] = GONE
        set_value(tree, int(gone), GONE)
    assert first_at_most(tree, 0, 6) == -1


def test_a_search_beyond_the_row_finds_nothing() -> None:
    """Fails when a position past the padded row reads outside the tree."""
    assert first_at_most(build_tree(np.zeros(3, np.int64)), 100, 5) == -1

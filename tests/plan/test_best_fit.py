import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.plan.best_fit import GONE, best_fit, build_tree, first_at_most, set_value

SIZES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=80)


@settings(deadline=None, max_examples=300)
@given(sizes=SIZES)
def test_agrees_with_a_scan_over_all_open_packs(sizes: list[tuple[int, int]], plain_best_fit) -> None:
    """Fails when a heap loses a pack in a merge, or the tree keeps a stale maximum: packs with room are then missed.

    Few sizes, so that many packs share an amount of free tokens and the heaps hold more than one.
    """
    kinds = sorted(set(sizes), reverse=True)
    count = np.array([sizes.count(kind) for kind in kinds])
    tokens, images = np.array(kinds, np.int64).T
    packs = best_fit(np.ascontiguousarray(tokens), np.ascontiguousarray(images), count, 12, 6)
    assert np.bincount(packs, np.repeat(tokens, count)).max() <= 12
    assert np.bincount(packs, np.repeat(images, count)).max() <= 6
    assert packs.max() + 1 == plain_best_fit([t for t, _ in sizes], [i for _, i in sizes], 12, 6)


def test_many_packs_with_the_same_free_tokens_stay_fast() -> None:
    """Fails when packs of equal free tokens are kept in a list: this would then take minutes."""
    n = 60_000
    images = np.arange(n, 0, -1)
    packs = best_fit(
        np.concatenate([np.full(n, 6), np.full(n, 5)]), np.tile(images, 2), np.ones(2 * n, np.int64), 11, n + 1
    )
    assert packs.max() + 1 == n


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

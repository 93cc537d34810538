"""Order of packs that is even in two costs."""

from __future__ import annotations

import numpy as np
import pytest

from preshard.packer_service.plan.alike import order_alike
from preshard.packer_service.plan.order import part_straggler, step_order, straggler_ratio


def drawn(n_packs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Costs of packs of which a third has no encoder's work, and the encoder's part of each."""
    rng = np.random.default_rng(seed)
    vision = rng.integers(0, 300, n_packs) * (rng.random(n_packs) < 2 / 3)
    return 1000.0 + rng.lognormal(5, 0.5, n_packs) + vision, vision.astype(np.float64)


def waited(order: np.ndarray, costs: np.ndarray, vision: np.ndarray, size: int) -> float:
    """Time of steps of which ranks wait behind the encoder, too, over that of even ones."""
    steps = order[: len(order) // size * size].reshape(-1, size)
    largest = vision[steps].max(axis=1) + (costs - vision)[steps].max(axis=1)
    return float(largest.sum() / costs[steps].mean(axis=1).sum())


@pytest.mark.parametrize("window", [64, 48, 27, 7])
def test_steps_are_even_before_and_behind_the_encoder(window: int) -> None:
    """Fails when the order looks at the sum alone, or when a shuffle inside of groups takes cells of the tree apart."""
    costs, vision = drawn(window * 60 + 5)
    by_cost = step_order(costs, window=window, seed=3)
    order = step_order(costs, window=window, seed=3, vision=vision)
    assert sorted(order) == list(range(len(costs)))
    for size in (size for size in range(2, window + 1) if window % size == 0):
        before, after = (waited(each, costs, vision, size) for each in (by_cost, order))
        assert before - 1 > 3 * (after - 1), size
        assert part_straggler(vision[order], size) < part_straggler(vision[by_cost], size)
        assert straggler_ratio(costs[order], size) < after


def test_cells_of_a_grid() -> None:
    """Fails when a cut falls through a group, is by the lesser cost, or leaves equal costs to chance."""
    wide, narrow = (each.reshape(-1).astype(np.float64) for each in np.meshgrid(np.arange(8) * 8, np.arange(8)))
    shuffled = np.random.default_rng(0).permutation(64)
    order = shuffled[order_alike(wide[shuffled], narrow[shuffled], 8)]
    steps = [(set(wide[step]), len(set(narrow[step]))) for step in order.reshape(8, 8)]
    assert steps == [({8.0 * column}, 8) for column in range(8)]
    pairs = order.reshape(32, 2)
    assert (narrow[pairs[:, 1]] - narrow[pairs[:, 0]] == 1).all()


def test_one_cost_is_sorted_as_it_is_alone() -> None:
    """Fails when packs without pictures, or with as many in each, stand in another order than by cost."""
    costs, _ = drawn(640)
    expected = step_order(costs, window=64, seed=1)
    for vision in (np.zeros(640), np.full(640, 128.0)):
        np.testing.assert_array_equal(step_order(costs, window=64, seed=1, vision=vision), expected)


def test_the_order_is_the_same_in_every_version() -> None:
    """Fails when ties or sums depend on how NumPy sorts: an interrupted job would plan other packs."""
    costs = np.array([5.0, 5, 5, 9, 9, 1, 1, 1, 3, 3, 7, 7])
    vision = np.array([2.0, 2, 0, 0, 4, 0, 0, 0, 3, 3, 0, 2])
    assert step_order(costs, window=4, seed=7, vision=vision).tolist() == [8, 9, 6, 5, 1, 2, 7, 0, 4, 11, 3, 10]


@pytest.mark.parametrize("n_packs", [0, 1, 3, 63, 64, 65])
def test_few_packs(n_packs: int) -> None:
    """Fails when there is no whole group, or just one."""
    costs, vision = drawn(n_packs)
    assert sorted(step_order(costs, window=64, seed=0, vision=vision)) == list(range(n_packs))


def test_work_of_a_part_by_hand() -> None:
    """Fails when steps of next to no work count as much as those that are waited for."""
    assert part_straggler(np.array([0.0, 2.0, 50.0, 50.0, 9.0]), 2) == pytest.approx(52 / 51)
    assert part_straggler(np.zeros(4), 2) == part_straggler(np.zeros(0), 2) == 1.0

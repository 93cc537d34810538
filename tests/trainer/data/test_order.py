"""The order of an epoch, exhaustively for small numbers."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from preshard.schemas.dataset.step_order import part_size
from preshard.trainer.data.order import epoch_order
from preshard.trainer.extra.separate_epochs import SeparateEpochs


@pytest.mark.parametrize(
    ("n_packs", "window"), [*itertools.product(range(14), range(1, 6)), (28, 6), (29, 8), (31, 9), (100, 64), (30, 12)]
)
def test_every_pack_once_and_every_step_of_neighbours(n_packs: int, window: int) -> None:
    """Fails when a pack is lost or taken twice, or a shuffle puts packs of two stored steps into one, of any size that
    divides the window: groups and parts of them stay whole and aligned, and so does what fills no group.
    """
    for seed, epoch in itertools.product((0, 7), (0, 1, 5)):
        order = epoch_order(n_packs, window=window, seed=seed, epoch=epoch).tolist()
        assert sorted(order) == list(range(n_packs))
        n_grouped = n_packs // window * window
        assert sorted(order[n_grouped:]) == list(range(n_grouped, n_packs))
        for size in (size for size in range(1, window + 1) if window % size == 0):
            for at in range(0, n_packs // size * size, size):
                step = sorted(order[at : at + size])
                assert step == list(range(step[0], step[0] + size))
                assert step[0] % size == 0 or (at >= n_grouped and part_size(window) is None)


def test_every_order_of_the_groups_comes_up_about_as_often() -> None:
    """Fails when the hash is biased: each of the 6 orders of 3 groups has 200 of 1,200 epochs, within 4 sigma."""
    orders = [tuple((epoch_order(6, window=2, seed=3, epoch=epoch)[::2] // 2).tolist()) for epoch in range(1200)]
    counts = [orders.count(order) for order in itertools.permutations(range(3))]
    assert sum(counts) == 1200
    assert all(abs(count - 200) < 52 for count in counts), counts


@pytest.mark.parametrize(("n_packs", "window", "most"), [(4, 4, 8), (3, 4, 2), (5, 64, 8), (4, 5, 24), (5, 6, 2)])
def test_fewer_packs_than_a_window_are_shuffled(n_packs: int, window: int, most: int) -> None:
    """Fails when a small dataset has one order for all seeds and epochs, or some of the orders hardly ever."""
    orders = [tuple(epoch_order(n_packs, window=window, seed=1, epoch=epoch).tolist()) for epoch in range(40 * most)]
    counts = Counter(orders)
    assert len(counts) == most
    assert 10 < min(counts.values()) <= max(counts.values()) < 100


def test_seed_and_epoch_each_change_the_order_and_do_not_stand_for_each_other() -> None:
    """Fails when the seed is added to the epoch: epoch 1 of seed 0 would be epoch 0 of seed 1."""
    orders = {
        tuple(epoch_order(64, window=1, seed=seed, epoch=epoch).tolist()) for seed in range(-2, 6) for epoch in range(6)
    }
    assert len(orders) == 48


def test_the_order_is_the_same_as_it_was() -> None:
    """Fails when a change would lead a resumed job to other samples than before."""
    assert epoch_order(11, window=2, seed=0, epoch=0).tolist() == [8, 9, 0, 1, 3, 2, 4, 5, 7, 6, 10]
    assert epoch_order(11, window=2, seed=2**63, epoch=1).tolist() == [9, 8, 6, 7, 1, 0, 5, 4, 2, 3, 10]
    assert epoch_order(11, window=8, seed=3, epoch=2).tolist() == [6, 7, 5, 4, 1, 0, 3, 2, 9, 8, 10]


@pytest.mark.parametrize(("position", "dp_size", "steps"), [(0, 1, 10), (0, 4, 2), (3, 4, 1), (7, 4, 0), (10, 1, 0)])
def test_steps_left_are_whole(position: int, dp_size: int, steps: int) -> None:
    """Fails when a step that lacks packs counts, or those that have been read."""
    assert SeparateEpochs(10, window=2, seed=0).steps_left(position, dp_size) == steps


def test_groups_stay_in_their_phases() -> None:
    """Fails when a reader shuffles a curriculum away, or leaves a phase unshuffled."""
    n_packs, phases = 107, [40, 60]
    orders = [epoch_order(n_packs, window=4, seed=5, epoch=epoch, phases=phases) for epoch in range(3)]
    for order in orders:
        assert [sorted(order[a:b]) for a, b in ((0, 40), (40, 100), (100, 107))] == [
            list(range(40)),
            list(range(40, 100)),
            list(range(100, 107)),
        ]
    assert len({tuple(order[:40]) for order in orders}) == 3
    assert (
        epoch_order(n_packs, window=4, seed=5, epoch=0, phases=[n_packs // 4 * 4]).tolist()
        == epoch_order(n_packs, window=4, seed=5, epoch=0).tolist()
    )

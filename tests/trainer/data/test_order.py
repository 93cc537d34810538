"""The order of an epoch, exhaustively for small numbers."""

from __future__ import annotations

import itertools

import pytest

from preshard.trainer.data.order import OneDataset, epoch_order


@pytest.mark.parametrize(("n_packs", "window"), list(itertools.product(range(14), range(1, 6))))
def test_every_pack_once_and_groups_whole_and_aligned(n_packs: int, window: int) -> None:
    """Fails when a pack is lost or taken twice, a group is split, or the rest pushes groups out of alignment."""
    for seed, epoch in itertools.product((0, 7), (0, 1, 5)):
        order = epoch_order(n_packs, window=window, seed=seed, epoch=epoch).tolist()
        assert sorted(order) == list(range(n_packs))
        n_grouped = n_packs // window * window
        for at in range(0, n_grouped, window):
            assert order[at] % window == 0
            assert order[at : at + window] == list(range(order[at], order[at] + window))
        assert order[n_grouped:] == list(range(n_grouped, n_packs))


def test_every_order_of_the_groups_comes_up_about_as_often() -> None:
    """Fails when the hash is biased: each of the 6 orders of 3 groups has 1,000 of 6,000 epochs, within 4 sigma."""
    orders = [tuple(epoch_order(6, window=2, seed=3, epoch=epoch)[::2].tolist()) for epoch in range(6000)]
    counts = [orders.count(order) for order in itertools.permutations((0, 2, 4))]
    assert sum(counts) == 6000
    assert all(abs(count - 1000) < 116 for count in counts), counts


def test_seed_and_epoch_each_change_the_order_and_do_not_stand_for_each_other() -> None:
    """Fails when the seed is added to the epoch: epoch 1 of seed 0 would be epoch 0 of seed 1."""
    orders = {
        tuple(epoch_order(64, window=1, seed=seed, epoch=epoch).tolist()) for seed in range(-2, 6) for epoch in range(6)
    }
    assert len(orders) == 48


def test_the_order_is_the_same_as_it_was() -> None:
    """Fails when a change would lead a resumed job to other samples than before."""
    assert epoch_order(11, window=2, seed=0, epoch=0).tolist() == [8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 10]
    assert epoch_order(11, window=2, seed=2**63, epoch=1).tolist() == [8, 9, 6, 7, 0, 1, 4, 5, 2, 3, 10]


@pytest.mark.parametrize(("position", "dp_size", "steps"), [(0, 1, 10), (0, 4, 2), (3, 4, 1), (7, 4, 0), (10, 1, 0)])
def test_steps_left_are_whole(position: int, dp_size: int, steps: int) -> None:
    """Fails when a step that lacks packs counts, or those that have been read."""
    assert OneDataset(10, window=2, seed=0).steps_left(position, dp_size) == steps

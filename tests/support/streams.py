"""The packs of a dataset in the order in which epochs take them: a second implementation."""

from __future__ import annotations

import itertools

import numpy as np

from preshard.trainer.data.order import EpochOrder, epoch_order


def packs_of(n_packs: int, *, window: int, seed: int, tail: str = "wrap", n_epochs: int = 8) -> list[int]:
    """Some epochs of packs, one after the other: whole ones, also where packs at their ends fill no step."""

    def order(epoch: int) -> list[int]:
        if tail == "drop":
            return epoch_order(n_packs, window=window, seed=seed, epoch=epoch).tolist()
        begun = epoch * n_packs % window
        whole = EpochOrder(n_packs, window=window, seed=seed, epoch=epoch, chunk=window, begun=begun)
        return whole.packs_at(np.arange(n_packs)).tolist()

    return list(itertools.chain.from_iterable(order(epoch) for epoch in range(n_epochs)))


def steps_of(
    n_packs: int, *, window: int, seed: int, dp_rank: int = 0, dp_size: int = 1, tail: str = "wrap"
) -> list[tuple[int, int]]:
    """(epoch that a state after the step names, pack) of a rank's steps."""
    packs = packs_of(n_packs, window=window, seed=seed, tail=tail)
    if tail == "wrap":
        return [((at + dp_size) // n_packs, packs[at + dp_rank]) for at in range(0, len(packs) - dp_size, dp_size)]
    firsts = range(0, n_packs - dp_size + 1, dp_size)
    return [(at // n_packs, packs[at + first + dp_rank]) for at in range(0, len(packs), n_packs) for first in firsts]

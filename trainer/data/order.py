"""The order in which an epoch takes the packs: a pure function of the seed, the epoch and the stored order."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64, UInt64


def epoch_order(n_packs: int, *, window: int, seed: int, epoch: int) -> Int64[np.ndarray, "packs"]:
    """Packs in the order of one epoch: aligned groups of ``window`` packs are shuffled, each kept whole.

    The packer stores packs so that those of an aligned group cost nearly the same, as do those of its aligned
    sub-groups. Only whole groups change places, so a data-parallel size that divides ``window`` has steps without a
    straggler in every epoch. Packs that do not fill a group stay last: anywhere else they would move the groups behind
    them out of alignment.

    The stored order has no special role: every epoch of every seed is a shuffle by the same rule.

    Args:
        n_packs: packs of the dataset, numbered in the stored order.
        window: packs of a group, the dataset's ``order.window``.
        seed: any integer; chooses the shuffles.
        epoch: from 0; chooses one of them.

    Returns:
        Each pack once. The same arguments give the same order on every machine and with every version of NumPy.
    """
    n_groups = n_packs // window
    groups = np.argsort(_hash(n_groups, seed, epoch), kind="stable")
    shuffled = (groups[:, None] * window + np.arange(window)).reshape(-1)
    return np.concatenate([shuffled, np.arange(n_groups * window, n_packs)])


def _hash(count: int, seed: int, epoch: int) -> UInt64[np.ndarray, "count"]:
    """A hash of (seed, epoch, i) for each i: SplitMix64 (Steele, Lea and Flood 2014) over each of the three in turn."""
    state = np.zeros(count, np.uint64)
    for value in (np.uint64(seed % 2**64), np.uint64(epoch % 2**64), np.arange(count, dtype=np.uint64)):
        state = state + value + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state

"""The order in which an epoch takes the packs: a pure function of the seed, the epoch and the stored order."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64, UInt64


class EpochOrder:
    """The order of one epoch: aligned groups of ``window`` packs are shuffled, each kept whole.

    The packer stores packs so that those of an aligned group cost nearly the same, as do those of its aligned
    sub-groups. Only whole groups change places, so a data-parallel size that divides ``window`` has steps without a
    straggler in every epoch. Packs that do not fill a group stay last: anywhere else they would move the groups behind
    them out of alignment.

    The stored order has no special role: every epoch of every seed is a shuffle by the same rule. Only the places of
    the groups are kept in memory.

    Args:
        n_packs: packs of the dataset, numbered in the stored order.
        window: packs of a group, the dataset's ``order.window``.
        seed: any integer; chooses the shuffles.
        epoch: from 0; chooses one of them.
        chunk: packs that a mixture takes at a time, a divisor of ``window``.
        begun: packs of a chunk that the epoch before has filled. As many packs of the first chunk go to the end, so
            that all chunks between the first and the last ones are whole, aligned parts of groups.
    """

    def __init__(self, n_packs: int, *, window: int, seed: int, epoch: int, chunk: int = 1, begun: int = 0) -> None:
        self._groups = np.argsort(_hash(n_packs // window, seed, epoch), kind="stable")
        self._window, self._kept, self._begun = window, chunk - begun, begun if len(self._groups) else 0

    def packs_at(self, places: Int64[np.ndarray, "places"]) -> Int64[np.ndarray, "places"]:
        """The packs at some places of the epoch, each place below ``n_packs``."""
        n_grouped = len(self._groups) * self._window
        stored = places + np.where(places >= self._kept, self._begun, 0)
        stored = np.where(stored >= n_grouped, stored - n_grouped + self._kept, stored)
        in_groups = places < n_grouped
        group, inside = np.divmod(stored[in_groups], self._window)
        packs = places.copy()
        packs[in_groups] = self._groups[group] * self._window + inside
        return packs


def epoch_order(n_packs: int, *, window: int, seed: int, epoch: int) -> Int64[np.ndarray, "packs"]:
    """All packs in the order of one epoch (see :class:`EpochOrder`).

    Returns:
        Each pack once. The same arguments give the same order on every machine and with every version of NumPy.
    """
    return EpochOrder(n_packs, window=window, seed=seed, epoch=epoch).packs_at(np.arange(n_packs))


class OneDataset:
    """The stream of packs of a single dataset: one epoch after another, each from its first pack.

    Args:
        n_packs: its packs.
        window: its ``order.window``.
        seed: chooses the orders of the epochs.
    """

    def __init__(self, n_packs: int, *, window: int, seed: int) -> None:
        self.n_packs, self._window, self._seed = n_packs, window, seed
        self._epoch, self._order = -1, EpochOrder(0, window=1, seed=0, epoch=0)

    def place(self, epoch: int, position: int) -> tuple[int, int]:
        """Dataset (always 0) and pack at a position of an epoch."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = EpochOrder(self.n_packs, window=self._window, seed=self._seed, epoch=epoch)
        return 0, int(self._order.packs_at(np.array([position]))[0])

    def steps_left(self, position: int, dp_size: int) -> int:
        """Whole steps from a position to the epoch's end."""
        return (self.n_packs - position) // dp_size

    def normal(self, epoch: int, position: int) -> tuple[int, int]:
        """A position as a state has it."""
        return epoch, position

    def next_pass(self, epoch: int, position: int) -> tuple[int, int]:  # noqa: ARG002
        """Where a pass begins after one that ended at a position: packs that fill no step are left out."""
        return epoch + 1, 0


def _hash(count: int, seed: int, epoch: int) -> UInt64[np.ndarray, "count"]:
    """A hash of (seed, epoch, i) for each i: SplitMix64 (Steele, Lea and Flood 2014) over each of the three in turn."""
    state = np.zeros(count, np.uint64)
    for value in (np.uint64(seed % 2**64), np.uint64(epoch % 2**64), np.arange(count, dtype=np.uint64)):
        state = state + value + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state

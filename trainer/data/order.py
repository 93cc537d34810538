"""The order in which an epoch takes the packs: a pure function of the seed, the epoch and the stored order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64, UInt64

from preshard.schemas.dataset.document_ids import mix64
from preshard.schemas.dataset.step_order import places_in_group, rest_order


class EpochOrder:
    """The order of one epoch: aligned groups of ``window`` packs are shuffled, each kept together, and parts of them.

    The packer stores packs so that those of an aligned group cost nearly the same, as do those of its aligned
    sub-groups. Only whole groups change places, and inside a group only what leaves the packs of every aligned
    sub-group together (:mod:`preshard.schemas.dataset.step_order`), so a data-parallel size that divides ``window``
    has steps without a straggler in every epoch. Packs that do not fill a group stay last, shuffled by the same
    rule: anywhere else they would move the groups behind them out of alignment.

    The stored order has no special role: every epoch of every seed is a shuffle by the same rule, whatever the number
    of ranks. Only the places of the groups and of the last packs are kept in memory.

    Args:
        n_packs: packs of the dataset, numbered in the stored order.
        window: packs of a group, the dataset's ``order.window``.
        seed: any integer; chooses the shuffles.
        epoch: from 0; chooses one of them.
        chunk: packs that a mixture takes at a time, a divisor of ``window``.
        phases: packs in the whole groups of each phase of a curriculum, in which groups change places by themselves.
        begun: packs of a chunk that the epoch before has filled. As many packs of the first chunk go to the end, so
            that all chunks between the first and the last ones are whole, aligned parts of groups.
    """

    def __init__(
        self,
        n_packs: int,
        *,
        window: int,
        seed: int,
        epoch: int,
        phases: Sequence[int] = (),
        chunk: int = 1,
        begun: int = 0,
    ) -> None:
        n_groups = n_packs // window
        self._seeds = seed, epoch
        numbers = np.arange(n_groups)
        phase = np.searchsorted(np.cumsum(phases) // window, numbers, side="right") if phases else np.zeros(n_groups)
        self._groups = np.lexsort((_hash(numbers, *self._seeds), phase))
        drawn = int(_hash(np.array([n_groups]), *self._seeds)[0])
        self._rest = n_groups * window + rest_order(n_packs % window, window, drawn)
        self._window, self._kept, self._begun = window, chunk - begun, begun if len(self._groups) else 0

    def packs_at(self, places: Int64[np.ndarray, "places"]) -> Int64[np.ndarray, "places"]:
        """The packs at some places of the epoch, each place below ``n_packs``."""
        n_grouped = len(self._groups) * self._window
        stored = places + np.where(places >= self._kept, self._begun, 0)
        stored = np.where(stored >= n_grouped, stored - n_grouped + self._kept, stored)
        in_groups = places < n_grouped
        place, inside = np.divmod(stored[in_groups], self._window)
        group = self._groups[place]
        packs = np.empty_like(places)
        packs[in_groups] = group * self._window + places_in_group(inside, self._window, _hash(group, *self._seeds))
        packs[~in_groups] = self._rest[places[~in_groups] - n_grouped]
        return packs


def epoch_order(
    n_packs: int, *, window: int, seed: int, epoch: int, phases: Sequence[int] = ()
) -> Int64[np.ndarray, "packs"]:
    """All packs in the order of one epoch (see :class:`EpochOrder`).

    Returns:
        Each pack once. The same arguments give the same order on every machine and with every version of NumPy.
    """
    order = EpochOrder(n_packs, window=window, seed=seed, epoch=epoch, phases=phases)
    return order.packs_at(np.arange(n_packs))


class SeparateEpochs:
    """The stream of packs of a single dataset: one epoch after another, each from its first pack.

    Packs at the end of an epoch that fill no step are left out.

    Args:
        n_packs: its packs.
        window: its ``order.window``.
        seed: chooses the orders of the epochs.
        phases: as of :class:`EpochOrder`.
    """

    def __init__(self, n_packs: int, *, window: int, seed: int, phases: Sequence[int] = ()) -> None:
        self.n_packs, self._window, self._seed, self._phases = n_packs, window, seed, phases
        self._epoch, self._order = -1, EpochOrder(0, window=1, seed=0, epoch=0)

    def place(self, epoch: int, position: int) -> tuple[int, int]:
        """Dataset (always 0) and pack at a position of an epoch."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = EpochOrder(
                self.n_packs, window=self._window, seed=self._seed, epoch=epoch, phases=self._phases
            )
        return 0, int(self._order.packs_at(np.array([position]))[0])

    def steps_left(self, position: int, dp_size: int) -> int:
        """Whole steps from a position to the epoch's end."""
        return (self.n_packs - position) // dp_size

    def normal(self, epoch: int, position: int) -> tuple[int, int]:
        """A position as a state has it."""
        return epoch, position

    def first_position(self, epoch: int, after: tuple[int, int], dp_size: int) -> int:  # noqa: ARG002
        """Position of the first step of an epoch."""
        return 0

    def next_pass(self, epoch: int, position: int) -> tuple[int, int]:  # noqa: ARG002
        """Place where a pass begins after one that ended at a position: packs that fill no step are left out."""
        return epoch + 1, 0


def _hash(numbers: Int64[np.ndarray, "n"], seed: int, epoch: int) -> UInt64[np.ndarray, "n"]:
    """A hash of (seed, epoch, number) for each number: of each of the three in turn."""
    state = np.zeros(len(numbers), np.uint64)
    for value in (np.uint64(seed % 2**64), np.uint64(epoch % 2**64), numbers.astype(np.uint64)):
        state = mix64(state + value)
    return state

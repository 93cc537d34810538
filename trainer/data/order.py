"""The order in which epochs take the packs: a pure function of the seed, the epoch and the stored order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Int64, UInt64

from preshard.schemas.dataset.step_order import mix64, places_in_group, rest_order
from preshard.trainer.extras import load_extra


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


def _hash(numbers: Int64[np.ndarray, "n"], seed: int, epoch: int) -> UInt64[np.ndarray, "n"]:
    """A hash of (seed, epoch, number) for each number: of each of the three in turn."""
    state = np.zeros(len(numbers), np.uint64)
    for value in (np.uint64(seed % 2**64), np.uint64(epoch % 2**64), numbers.astype(np.uint64)):
        state = mix64(state + value)
    return state


class Stream(Protocol):
    """The packs of one or several datasets in order, epoch after epoch; :class:`EndlessEpochs` says what each means."""

    n_packs: int

    def place(self, epoch: int, position: int) -> tuple[int, int]: ...
    def place_of_step(self, epoch: int, step: int, dp_size: int) -> tuple[int, int]: ...
    def steps_left(self, position: int, dp_size: int) -> int: ...
    def normal(self, epoch: int, position: int) -> tuple[int, int]: ...
    def first_position(self, epoch: int, after: tuple[int, int], dp_size: int) -> int: ...
    def next_pass(self, epoch: int, position: int) -> tuple[int, int]: ...


class EndlessEpochs:
    """The endless stream of packs of one or several datasets.

    It consists of chunks, each from one dataset: as many packs as divide the ``order.window`` of all of them, so that a
    step lies in one chunk and its packs cost nearly the same. Each dataset goes through epochs of its own, each a
    shuffle of all its packs; where an epoch does not end with a chunk, the next one begins in it.

    An epoch of the stream is as many packs as the datasets have together. No pack is left out at its end: a step may
    begin in one epoch and end in the next.

    Args:
        sizes: packs of each dataset.
        windows: ``order.window`` of each.
        shares: how often each has its turn, in whole numbers (:func:`preshard.trainer.extra.mixture.whole_shares`).
        seed: chooses the orders of the datasets' epochs.
        phases: of each, as of :class:`~preshard.trainer.data.order.EpochOrder`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        windows: Sequence[int],
        shares: Sequence[int],
        seed: int,
        phases: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._phases = phases or [()] * len(sizes)
        self.n_packs = sum(sizes)
        self.chunk = math.gcd(*windows)
        self._sizes, self._windows, self._seed = list(sizes), list(windows), seed
        self._turns = np.zeros(1, np.int64) if len(sizes) == 1 else load_extra("mixture").turns(shares)
        self._per_period = np.bincount(self._turns, minlength=len(sizes))
        self._earlier = np.empty_like(self._turns)
        for i in range(len(sizes)):
            mine = np.flatnonzero(self._turns == i)
            self._earlier[mine] = np.arange(len(mine))
        self._orders: dict[int, tuple[int, EpochOrder]] = {}

    def place(self, epoch: int, position: int) -> tuple[int, int]:
        """Dataset and pack at a position of an epoch of the stream."""
        chunk, inside = divmod(epoch * self.n_packs + position, self.chunk)
        period, turn = divmod(chunk, len(self._turns))
        dataset = int(self._turns[turn])
        chunks_before = period * int(self._per_period[dataset]) + int(self._earlier[turn])
        of_dataset, place = divmod(chunks_before * self.chunk + inside, self._sizes[dataset])
        return dataset, int(self._order(dataset, of_dataset).packs_at(np.array([place]))[0])

    def _order(self, dataset: int, epoch: int) -> EpochOrder:
        known = self._orders.get(dataset)
        if known is None or known[0] != epoch:
            size = self._sizes[dataset]
            order = EpochOrder(
                size,
                window=self._windows[dataset],
                seed=self._seed,
                epoch=epoch,
                phases=self._phases[dataset],
                chunk=self.chunk,
                begun=epoch * size % self.chunk,
            )
            known = self._orders[dataset] = (epoch, order)
        return known[1]

    def steps_left(self, position: int, dp_size: int) -> int:
        """Steps from a position on that begin before the epoch's end; the last one may end in the next epoch."""
        return -(-(self.n_packs - position) // dp_size)

    def place_of_step(self, epoch: int, step: int, dp_size: int) -> tuple[int, int]:
        """Epoch and position at which a step begins, where each epoch counts as its whole steps."""
        return self.normal(0, (epoch * (self.n_packs // dp_size) + step) * dp_size)

    def normal(self, epoch: int, position: int) -> tuple[int, int]:
        """A position as a state has it: with the epoch that the next pack belongs to."""
        return divmod(epoch * self.n_packs + position, self.n_packs)

    def first_position(self, epoch: int, after: tuple[int, int], dp_size: int) -> int:
        """Position of the first step that begins in an epoch: of those that follow each other from ``after`` on, which
        an earlier job with another ``dp_size`` may have reached; before that, from the start of the stream on.
        """
        earlier, position = after if 0 < epoch >= after[0] else (0, 0)
        return (position - (epoch - earlier) * self.n_packs) % dp_size

    def next_pass(self, epoch: int, position: int) -> tuple[int, int]:
        """Place where a pass begins after one that ended at a position: with the very next pack."""
        return self.normal(epoch, position)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_orders": {}}

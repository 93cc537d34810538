"""Epochs one after another, each from its first pack: packs that fill no step are left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from preshard.trainer.data.order import EpochOrder


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

    def place_of_step(self, epoch: int, step: int, dp_size: int) -> tuple[int, int]:
        """Epoch and position at which a step begins."""
        return epoch, step * dp_size

    def normal(self, epoch: int, position: int) -> tuple[int, int]:
        """A position as a state has it."""
        return epoch, position

    def first_position(self, epoch: int, after: tuple[int, int], dp_size: int) -> int:  # noqa: ARG002
        """Position of the first step of an epoch."""
        return 0

    def next_pass(self, epoch: int, position: int) -> tuple[int, int]:  # noqa: ARG002
        """Place where a pass begins after one that ended at a position: packs that fill no step are left out."""
        return epoch + 1, 0

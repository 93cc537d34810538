"""Several datasets as one stream: which gives the next packs is a pure function of their weights and the position."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Int64

from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ReaderError
from preshard.schemas.manifest import ManifestHead
from preshard.trainer.data.order import EpochOrder

SAME_TOKENS = ("sha256", "vocab_size", "bos_id", "eos_id", "pad_id", "image_id")
"""Fields of a tokenizer that must be the same; its name and its chat template may differ."""

SAME_INPUTS = ("axes", "merge", "row_ids", "group_ids", "bidirectional", "settings")
"""Fields of the model that a dataset was packed for that must be the same; the hashes of its files may differ, as of
another chat template."""


def check_alike(datasets: Sequence[tuple[str, ManifestHead, PackConfig]]) -> None:
    """Checks that datasets, each with its location, hold packs of one length for one model, and that none comes twice.

    Raises:
        ReaderError: they do not; names the first two that differ, and in what.
    """
    first_path, first, _ = datasets[0]
    wanted = _properties(first, datasets[0][2])
    seen = {first.dataset_id: first_path}
    for path, manifest, config in datasets[1:]:
        if manifest.dataset_id in seen:
            raise ReaderError(
                f"{path} is the same dataset as {seen[manifest.dataset_id]}; give it once, with the sum of the weights"
            )
        seen[manifest.dataset_id] = path
        for name, value in _properties(manifest, config).items():
            if value != wanted[name]:
                raise ReaderError(
                    f"{path} cannot be mixed with {first_path}: {name} is {_shown(value)}, not {_shown(wanted[name])}; "
                    "pack one of them again with the settings of the other"
                )


def _properties(manifest: ManifestHead, config: PackConfig) -> dict[str, Any]:
    """Properties that must be equal, by the name under which errors show it."""
    model = manifest.model
    return {
        "the model's type": None if model is None else model.model_type,
        "images.backend": None if model is None else config.images.backend,
        **{f"the model's {name}": None if model is None else getattr(model, name) for name in SAME_INPUTS},
        **{f"the tokenizer's {name}": getattr(manifest.tokenizer, name) for name in SAME_TOKENS},
        "seq_len": config.seq_len,
        **({"vision": config.vision.model_dump()} if model is None else {}),
    }


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


FINEST = 100_000
"""Shares are whole numbers of this many parts at the finest, so that a turn through all of them stays a small table."""


def parse_weighted(text: str) -> tuple[str, float | None]:
    """Splits ``PATH:WEIGHT`` at its last colon, if a number follows it: paths may have colons of their own.

    ``s3://bucket/a:0.7`` is the path ``s3://bucket/a``; ``C:/data`` has no weight. A path that itself ends in a colon
    and a number needs a weight behind it.
    """
    found = re.fullmatch(r"(.+):([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)", text)
    return (found[1], float(found[2])) if found is not None else (text, None)


def whole_shares(weights: Sequence[float]) -> list[int]:
    """Weights as whole numbers in the same proportion, as small as they can be, rounded to :data:`FINEST` parts.

    Raises:
        ReaderError: a weight is not a number above 0, or too small beside the others.
    """
    for weight in weights:
        if not (math.isfinite(weight) and weight > 0):
            raise ReaderError(f"a dataset's weight is {weight}; give a number above 0, or leave the dataset out")
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    shares = [int(weight * scale) for weight in exact]
    if sum(shares) // math.gcd(*shares) > FINEST:
        shares = _rounded(shares)
    if min(shares) == 0:
        raise ReaderError(
            f"a dataset's weight is {weights[shares.index(0)]:g} of {sum(weights):g}; the least share of a mixture is "
            f"one in {FINEST}: give more, or leave the dataset out"
        )
    divisor = math.gcd(*shares)
    return [share // divisor for share in shares]


def _rounded(shares: Sequence[int]) -> list[int]:
    """Shares of :data:`FINEST` parts: rounded down, and what is left to the largest remainders."""
    total = sum(shares)
    parts = [share * FINEST // total for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (-(shares[i] * FINEST % total), i))
    for i in by_remainder[: FINEST - sum(parts)]:
        parts[i] += 1
    return parts


def turns(shares: Sequence[int]) -> Int64[np.ndarray, "period"]:
    """Number of the dataset whose turn it is, over one period of ``sum(shares)`` turns, after which it repeats.

    After any number n of turns, each of k datasets has had its share of n to within 1 - 1/(2k - 2), which is the least
    bound that holds for all shares (Tijdeman, "The chairman assignment problem", 1980). Of the datasets that are far
    enough behind, the one goes next that would first be too far behind.
    """
    period, k = sum(shares), len(shares)
    if k == 1:
        return np.zeros(1, np.int64)
    # all multiplied by the period and by 2k - 2, to stay with whole numbers
    scale, unit = 2 * k - 2, period * (2 * k - 2)
    behind, found = [0] * k, np.empty(period, np.int64)
    for turn in range(period):
        best, best_room = -1, 0
        for i, share in enumerate(shares):
            behind[i] += scale * share
            room = unit - period - behind[i]
            # room / share is the number of turns that the dataset can still wait
            if behind[i] >= period and (best < 0 or room * shares[best] < best_room * share):
                best, best_room = i, room
        behind[best] -= unit
        found[turn] = best
    return found


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
        shares: how often each has its turn, in whole numbers (see :func:`whole_shares`).
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
        self._turns = turns(shares)
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

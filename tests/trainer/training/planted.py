"""Mistakes made on purpose, which the comparison with one process must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from preshard.schemas.sequence import IGNORE_INDEX
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.reader import PackReader

Change = Callable[[RankBatch], RankBatch]


def _shifted_labels(batch: RankBatch) -> RankBatch:
    """Labels shifted once more, over the local slice, as by a trainer that shifts them itself."""
    labels = torch.cat([batch.labels[1:], batch.labels[:1]])
    return replace(batch, labels=labels, loss_tokens=torch.nonzero(labels != IGNORE_INDEX)[:, 0])


def _heavier(batch: RankBatch) -> RankBatch:
    return replace(batch, loss_weights=batch.loss_weights * 1.001)


def _late_positions(batch: RankBatch) -> RankBatch:
    """Positions counted from the start of the slice instead of the document."""
    return replace(batch, position_ids=batch.position_ids - batch.position_ids[:, :1])


def _swapped_runs(batch: RankBatch) -> RankBatch:
    """The last two blocks of the slice exchanged in the layout, but not in the tokens."""
    runs = batch.layout.runs.copy()
    mine = [i for i in range(len(runs)) if runs[i, 0] == runs[-1, 0]]
    first, last = mine[0], mine[-1]
    if first == last:
        start, length = runs[last, 1], runs[last, 2] // 2
        halves = [[runs[last, 0], start + length, runs[last, 2] - length], [runs[last, 0], start, length]]
        swapped = [*runs[:last].tolist(), *halves]
    else:
        runs[[first, last]] = runs[[last, first]]
        swapped = runs.tolist()
    return replace(batch, layout=replace(batch.layout, runs=torch.tensor(swapped, dtype=torch.int32).numpy()))


def exchange_images(batch: RankBatch) -> RankBatch:
    """The rank's crops of each size in the opposite order, so that features fill each other's tokens."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, picture in enumerate(batch.pictures):
        places.setdefault(tuple(picture.shape), []).append(place)
    moved = {old: new for same in places.values() for old, new in zip(same, reversed(same), strict=True)}
    pictures = [batch.pictures[moved[place]].flatten() for place in range(len(batch.pictures))]
    return replace(batch, pixels=torch.cat([batch.pixels[:0], *pictures]))


@contextmanager
def _change_batches(change: Change, rank: int, world_size: int) -> Iterator[None]:
    """Changes the batches of the last rank only; the other ranks get the right ones."""
    right = PackReader.read

    def read(self: PackReader, *args: Any, **kwargs: Any) -> RankBatch:
        return change(right(self, *args, **kwargs))

    wrong = rank == world_size - 1
    with patch.object(PackReader, "read", read) if wrong else nullcontext():
        yield


def _plant(change: Change) -> Callable[[int, int], AbstractContextManager[None]]:
    return lambda rank, world_size: _change_batches(change, rank, world_size)


PLANTS: dict[str | None, Callable[[int, int], AbstractContextManager[None]]] = {
    None: lambda *_: nullcontext(),
    "label-shift": _plant(_shifted_labels),
    "loss-weight": _plant(_heavier),
    "rope-position": _plant(_late_positions),
    "layout-run": _plant(_swapped_runs),
    "boundary-order": _plant(exchange_images),
}
"""Ways to make each mistake, by name: a function of the rank and the number of ranks."""

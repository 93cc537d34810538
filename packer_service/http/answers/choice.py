"""The layout and degrees that a question is about: those asked for if the dataset has them, or else defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.models.balance import Chosen
from preshard.packer_service.http.problems import not_found, not_legal
from preshard.schemas.config import PackConfig

T = TypeVar("T", int, str)

_PREFERRED = "balanced_ring"


def choose(config: PackConfig, layout: str | None, ring: int | None, cp: int | None) -> Chosen:
    """The choice for a dataset. A CP size alone also sets the ring degree, and the other way round.

    Raises:
        ProblemError: 422 the dataset has no such layout, ring degree or CP size; the detail lists what it has.
    """
    usual = _PREFERRED if _PREFERRED in config.layouts else config.layouts[-1]
    return Chosen(
        layout=check("layout", layout, config.layouts) or usual,
        ring_degree=check("ring", ring, config.ring_degrees) or _like(cp, config.ring_degrees),
        cp_size=check("cp", cp, config.cp_sizes) or _like(ring, config.cp_sizes),
    )


def check(name: str, asked: T | None, there: Sequence[T]) -> T | None:
    """Returns what was asked for, if the dataset has it.

    Raises:
        ProblemError: 422 it does not; the detail lists what it has.
    """
    if asked is not None and asked not in there:
        raise not_legal(f"{name}: {asked!r:.80} is not in this dataset; there is {', '.join(map(str, there))}")
    return asked


def _like(other: int | None, there: Sequence[int]) -> int:
    return other if other in there and other is not None else max(there)


def ranked(values: np.ndarray, wanted: slice, *, descending: bool) -> Int64[np.ndarray, "some"]:
    """Places of the values from ``wanted.start`` to ``wanted.stop`` of their order; equal ones by place, nan last."""
    start, stop, _ = wanted.indices(len(values))
    if start >= stop:
        return np.zeros(0, np.int64)
    keys = values.astype(np.float64) * (-1 if descending else 1)
    keys[np.isnan(keys)] = np.inf
    low, high = np.partition(keys, (start, stop - 1))[[start, stop - 1]]
    near = np.flatnonzero((keys >= low) & (keys <= high))
    before = start - np.count_nonzero(keys < low)
    return near[np.argsort(keys[near], kind="stable")][before : before + stop - start]


def packs_of_shard(dataset: ServedDataset, shard: str) -> range:
    """The packs of a shard.

    Raises:
        ProblemError: 404 there is no such shard.
    """
    entry = dataset.shards.find(shard)
    if entry is not None:
        return range(entry.first_pack, entry.first_pack + entry.packs)
    last = dataset.shards[len(dataset.shards) - 1].name if len(dataset.shards) else "none"
    raise not_found("shard", f"There is no shard {shard!r:.100}; the last one is {last}.")

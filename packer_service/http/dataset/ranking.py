"""A part of the order of many values, without sorting all of them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

FEW = 65_536
"""Values that are simply sorted, which takes a few milliseconds."""


def ranked(values: np.ndarray, wanted: slice, *, descending: bool) -> Int64[np.ndarray, "some"]:
    """Places of the values from ``wanted.start`` to ``wanted.stop`` of their order; equal ones by place, nan last.

    Args:
        values: not negative, or of floating point.
        wanted: a part of the order.
        descending: the largest first.
    """
    start, stop, _ = wanted.indices(len(values))
    if start >= stop:
        return np.zeros(0, np.int64)
    keys = -np.asarray(values) if descending else np.asarray(values)
    if len(keys) <= FEW:
        order: Int64[np.ndarray, "some"] = np.argsort(keys, kind="stable")[start:stop]
        return order
    if keys.dtype.kind == "f":
        keys = np.where(np.isnan(keys), np.inf, keys)
    edges = np.partition(keys, (start, stop - 1))
    low, high = edges[start], edges[stop - 1]
    near = np.flatnonzero((keys >= low) & (keys <= high))
    first = start - int(np.count_nonzero(keys < low))
    chosen: Int64[np.ndarray, "some"] = near[np.argsort(keys[near], kind="stable")][first : first + stop - start]
    return chosen

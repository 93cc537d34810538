"""A part of the order of many values, without sorting all of them."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int64

FEW = 16_384
"""Values that are simply sorted, which takes a millisecond."""

SAMPLED = 16_384
"""Values by which it is guessed where a part of the order lies."""

MARGIN = 4
"""Standard deviations of that guess that are allowed for. A guess that was too narrow is noticed."""

NEAR_SHARE = 8
"""One value in so many may lie where the part is guessed to be; more are sorted the other way."""


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
    found = None if len(values) <= FEW else _near(values, start, stop, descending=descending)
    if found is not None:
        return found
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


def _near(values: np.ndarray, start: int, stop: int, *, descending: bool) -> Int64[np.ndarray, "some"] | None:
    """The places from ``start`` to ``stop``, found among values near those of a sample; None where it misleads.

    Selecting (``np.partition``) moves all values several times over, and this compares each of them three times.
    """
    sample = values[:: max(len(values) // SAMPLED, 1)]
    real = np.sort(sample if values.dtype.kind != "f" else sample[~np.isnan(sample)])
    n_real = len(values) * len(real) // len(sample)
    if not n_real:
        return None
    low, high = (n_real - stop, n_real - start) if descending else (start, stop)
    low_at, high_at = (_guess(place / n_real, len(real), sign) for place, sign in ((low, -1), (high, 1)))
    is_near = np.ones(len(values), bool)
    if low_at >= 0:
        is_near &= values >= real[low_at]
    if high_at < len(real):
        is_near &= values <= real[high_at]
    if values.dtype.kind == "f" and (low_at < 0 or high_at >= len(real)):
        is_near &= ~np.isnan(values)
    near = np.flatnonzero(is_near)
    if not len(near) or len(near) * NEAR_SHARE > len(values):
        return None
    if descending:
        before = 0 if high_at >= len(real) else int(np.count_nonzero(values > real[high_at]))
    else:
        before = 0 if low_at < 0 else int(np.count_nonzero(values < real[low_at]))
    if before > start or before + len(near) < stop:
        return None
    keys = -values[near] if descending else values[near]
    chosen: Int64[np.ndarray, "some"] = near[np.argsort(keys, kind="stable")][start - before : stop - before]
    return chosen


def _guess(share: float, sampled: int, sign: int) -> int:
    """The place in a sorted sample that is beyond a share of all values, below (-1) or above it (1)."""
    share = min(max(share, 0.0), 1.0)
    deviation = (sampled * share * (1 - share)) ** 0.5
    return math.floor(share * sampled) + sign * math.ceil(MARGIN * deviation + MARGIN)

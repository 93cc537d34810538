"""Histograms of sizes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.http.models.common import Histogram

MOST_BITS = 64
"""Binary digits of the largest number that a table holds."""

BARS = 32
"""Bars of a histogram: enough to show its shape, and few enough to be distinguishable on a phone."""


def histogram(values: np.ndarray, unit: str) -> Histogram:
    """Bars of equal width over the values' range; for whole numbers, at least one wide."""
    if not len(values):
        return Histogram(unit=unit, edges=[0, 1], counts=[0])
    low, high = values.min(), values.max()
    if np.issubdtype(values.dtype, np.integer):
        width = max(-(-int(high - low + 1) // BARS), 1)
        edges = np.arange(int(low), int(high) + width + 1, width)[: -(-int(high - low + 1) // width) + 1]
    else:
        edges = np.linspace(low, high if high > low else low + 1, BARS + 1)
    counts, _ = np.histogram(values, edges)
    return Histogram(unit=unit, edges=edges.tolist(), counts=counts.tolist())


def doubling_counts(values: Int64[np.ndarray, "values"]) -> Int64[np.ndarray, "bits"]:
    """How many values have each number of binary digits. Counts of parts add up."""
    return np.bincount(np.frexp(values.astype(np.float64))[1], minlength=MOST_BITS)


def doubling_histogram(counts: Int64[np.ndarray, "bits"], unit: str) -> Histogram:
    """Bars that double in width: for lengths, some of which are a thousand times others.

    Args:
        counts: of :func:`doubling_counts`.
        unit: what the values count.
    """
    top = int(np.flatnonzero(counts).max(initial=0))
    edges = [0, *(1 << power for power in range(top + 1))]
    return Histogram(unit=unit, edges=edges, counts=counts[: top + 1].tolist())

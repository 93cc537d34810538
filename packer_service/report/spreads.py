"""How a measure is spread over packs that come in parts, without holding its values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from preshard.packer_service.report.records import Spread

ABOVE = 20
"""One value in so many may exceed the 95%."""


class PartedMean:
    """The mean of values that come in parts: of one part, to the last bit what NumPy says."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: list[float] = []

    def add(self, values: np.ndarray) -> None:
        self.count += len(values)
        self._sums.append(float(values.sum(dtype=np.float64)))

    @property
    def total(self) -> float:
        return math.fsum(self._sums)

    def mean(self) -> float | None:
        """None without values."""
        return self.total / self.count if self.count else None


class PartedSpread:
    """Mean, 95% and largest of the values that are not nan; the 95% is the least value that so many do not exceed.

    Of the values only the largest twentieth is held, among which the 95% is.

    Args:
        most: the most values that come.
    """

    def __init__(self, most: int) -> None:
        self._kept = most // ABOVE + 1
        self._largest: Float64[np.ndarray, "some"] = np.zeros(0)
        self._mean = PartedMean()

    def add(self, values: Float64[np.ndarray, "packs"]) -> None:
        """Adds the values of some packs; nan where the measure has no meaning."""
        real = values[~np.isnan(values)]
        self._mean.add(real)
        self._largest = _largest(np.concatenate([self._largest, _largest(real, self._kept)]), self._kept)

    def spread(self) -> Spread:
        count = self._mean.count
        if not count:
            return Spread(packs=0, mean=None, p95=None, max=None)
        at = len(self._largest) - (count // ABOVE + 1)
        return Spread(
            packs=count,
            mean=self._mean.mean(),
            p95=float(np.partition(self._largest, at)[at]),
            max=float(self._largest.max()),
        )


def _largest(values: Float64[np.ndarray, "n"], most: int) -> Float64[np.ndarray, "some"]:
    return values if len(values) <= most else np.partition(values, len(values) - most)[-most:]


def spread(values: Float64[np.ndarray, "packs"]) -> Spread:
    """The same of values that are all there."""
    parts = PartedSpread(len(values))
    parts.add(values)
    return parts.spread()


def spreads(parts: Sequence[Float64[np.ndarray, "packs"]]) -> list[Spread]:
    """The same of each of several; those that are as long, and have as many values, all at once."""
    if len({len(part) for part in parts}) != 1:
        return [spread(part) for part in parts]
    rows = np.stack(parts)
    is_real = ~np.isnan(rows)
    counts = is_real.sum(axis=1)
    found = [Spread(packs=0, mean=None, p95=None, max=None)] * len(rows)
    for count in np.unique(counts[counts > 0]).tolist():
        places = np.flatnonzero(counts == count)
        values = rows[places][is_real[places]].reshape(len(places), count)
        ordered = np.sort(values, axis=1)
        columns = (values.sum(axis=1) / count, ordered[:, count - (count // ABOVE + 1)], ordered[:, -1])
        for place, mean, p95, most in zip(places, *(column.tolist() for column in columns), strict=True):
            found[place] = Spread(packs=count, mean=mean, p95=p95, max=most)
    return found

"""The least possible largest load of consecutive units, by dynamic programming over the parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def least_largest_load(loads: Sequence[int], parts: int) -> int:
    """The least possible largest sum of a part when the loads are cut into at most ``parts`` consecutive parts.

    ``best[i]`` is that of the first i loads, for one part more in each turn. The last part begins at some j: then the
    largest is ``max(best[j], totals[i] - totals[j])``. The first of the two grows with j, the second shrinks, so the
    best j is where they meet, or the one before.
    """
    totals = np.concatenate([[0], np.cumsum(np.array(loads, np.int64))])
    best = totals
    for _ in range(min(parts, len(loads)) - 1):
        meet = np.searchsorted(best + totals, totals)
        before = np.maximum(meet - 1, 0)
        best = np.minimum(
            np.maximum(best[meet], totals - totals[meet]), np.maximum(best[before], totals - totals[before])
        )
    return int(best[-1])

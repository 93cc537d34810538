"""Image boundaries: consecutive units to each rank, with the least possible largest load.

This is the linear partition problem: cut a sequence into consecutive parts so that the largest sum is least. A binary
search tries largest loads, and greedy filling decides each try, which is exact for loads that are not negative.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from math import gcd

import numpy as np
from jaxtyping import Int64

from preshard.schemas.errors import LayoutError


def _parts_needed(totals: list[int], limit: int, most: int) -> int:
    """Parts of at most ``limit`` that greedy filling needs; ``most + 1`` where it needs more than ``most``."""
    units, at, parts = len(totals) - 1, 0, 0
    while at < units and parts <= most:
        at = bisect_right(totals, totals[at] + limit, lo=at) - 1
        parts += 1
    return parts


def smallest_limit(loads: list[int], ranks: int) -> int:
    """The least possible largest load of a rank."""
    unit = gcd(*loads) or 1  # encoders' loads are large multiples of few numbers: fewer limits are left to try
    totals = [0, *accumulate(load // unit for load in loads)]
    largest, even = max(loads, default=0) // unit, -(-totals[-1] // ranks)
    low = max(largest, even)
    high = max(low, min(totals[-1], even + largest))  # each part but the last then has more than an even share
    while low < high:
        middle = (low + high) // 2
        if _parts_needed(totals, middle, ranks) <= ranks:
            high = middle
        else:
            low = middle + 1
    return low * unit


def image_edges(loads: Int64[np.ndarray, "units"], ranks: int) -> Int64[np.ndarray, "ranks_plus_1"]:
    """Edges of each rank's units: rank r holds ``edges[r]:edges[r + 1]``.

    The largest load of a rank is the least possible, and no rank is empty while there are at least as many units as
    ranks: splitting a part never raises the largest load, so this costs nothing. Among the optimal boundaries, each
    edge in turn is as near as it can be to an even share of the load, and the earlier of two that are equally near (of
    loads above 0). With fewer units than ranks, each unit is alone and the later ranks are empty.

    Args:
        loads: load of each unit, an integer that is not negative.
        ranks: number of ranks, at least 1.

    Raises:
        LayoutError: there is no rank, or a load is negative.
    """
    if ranks < 1:
        raise LayoutError(f"images cannot be divided over {ranks} ranks; give at least 1")
    values = [int(load) for load in loads]
    if values and min(values) < 0:
        raise LayoutError(f"unit {values.index(min(values))} has load {min(values)}; loads must be at least 0")
    units = len(values)
    if units <= ranks:
        return np.minimum(np.arange(ranks + 1), units).astype(np.int64)
    limit = smallest_limit(values, ranks)
    totals = [0, *accumulate(values)]
    # earliest[r]: the first edge r from which the ranks r, r + 1, ... can hold all that remains within the limit.
    earliest = [units] * (ranks + 1)
    for rank in range(ranks - 1, -1, -1):
        earliest[rank] = bisect_left(totals, totals[earliest[rank + 1]] - limit)
    edges = [0]
    for rank in range(1, ranks):
        low = max(edges[-1] + 1, earliest[rank])
        high = min(bisect_right(totals, totals[edges[-1]] + limit) - 1, units - (ranks - rank))
        # Compared as ranks * total against rank * whole, in integers.
        after = bisect_left(totals, -(-rank * totals[-1] // ranks), lo=low, hi=high)
        nearer = [at for at in (after - 1, after) if low <= at <= high]
        edges.append(min(nearer, key=lambda at: (abs(ranks * totals[at] - rank * totals[-1]), at)))
    return np.array([*edges, units], np.int64)

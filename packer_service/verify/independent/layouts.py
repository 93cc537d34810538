"""The schemes and image boundaries that have a definition, rank by rank as ``docs/format.md`` states them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

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


Rows = list[list[int]]
"""Rows (ring_rank, start, length)."""


def contiguous(seq_len: int, ring_degree: int) -> Rows:
    """Rank r has the r-th of R equal ranges."""
    length = seq_len // ring_degree
    return [[rank, rank * length, length] for rank in range(ring_degree)]


def zigzag(documents: Sequence[tuple[int, int]], seq_len: int, ring_degree: int) -> Rows:
    """Rank r has chunks r and 2R - 1 - r of each segment's 2R, rows that touch joined.

    Args:
        documents: start and end of each document, its alignment padding included, ascending.
        seq_len: tokens of the pack.
        ring_degree: R; twice this many divides every segment.
    """
    edges = sorted({0, seq_len, *(edge for document in documents for edge in document)})
    rows: Rows = []
    for rank in range(ring_degree):
        for start, end in pairwise(edges):
            chunk = (end - start) // (2 * ring_degree)
            for which in (rank, 2 * ring_degree - 1 - rank):
                at = start + which * chunk
                if rows and rows[-1][0] == rank and rows[-1][1] + rows[-1][2] == at:
                    rows[-1][2] += chunk
                else:
                    rows.append([rank, at, chunk])
    return rows

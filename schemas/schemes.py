"""Layouts that a scheme's definition gives: contiguous and zigzag slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int32, Int64

from preshard.schemas.errors import LayoutError


def alignment_of(schemes: Sequence[str], ring_degrees: Sequence[int]) -> int:
    """Documents begin at multiples of this, since zigzag cuts each one into ``2 * ring_degree`` equal chunks."""
    return 2 * math.lcm(*ring_degrees) if "zigzag" in schemes else 1


def merge_adjacent(runs: Int64[np.ndarray, "rows 3"]) -> Int32[np.ndarray, "runs 3"]:
    """Drops empty rows, and joins neighbouring rows of a rank where the second starts at the end of the first."""
    runs = runs[runs[:, 2] > 0]
    if not len(runs):
        return np.zeros((0, 3), np.int32)
    rank, start, length = runs.T
    first = np.concatenate([[True], (rank[1:] != rank[:-1]) | (start[:-1] + length[:-1] != start[1:])])
    heads = np.flatnonzero(first)
    return np.stack([rank[heads], start[heads], np.add.reduceat(length, heads)], axis=1).astype(np.int32)


def contiguous_runs(seq_len: int, ring_degree: int) -> Int32[np.ndarray, "ring 3"]:
    """Rank r holds the r-th of ``ring_degree`` equal ranges.

    Raises:
        LayoutError: ``seq_len`` does not divide.
    """
    if seq_len % ring_degree:
        raise LayoutError(
            f"contiguous at ring degree {ring_degree}: seq_len {seq_len} is not a multiple of {ring_degree}"
        )
    length, ranks = seq_len // ring_degree, np.arange(ring_degree)
    return np.stack([ranks, ranks * length, np.full(ring_degree, length)], axis=1).astype(np.int32)


def zigzag_runs(edges: Int64[np.ndarray, "segments_plus_1"], ring_degree: int) -> Int32[np.ndarray, "runs 3"]:
    """Rank r holds chunks r and ``2R - 1 - r`` of the ``2R`` equal chunks of each segment, segment after segment.

    So the first, light part of a document's causal triangle is paired with a heavy one (zhuzilin/ring-flash-attention,
    ``zigzag_ring_flash_attn_varlen``).

    Raises:
        LayoutError: the length of a segment is not a multiple of ``2 * ring_degree``.
    """
    edges = np.asarray(edges, np.int64)
    lengths, parts = np.diff(edges), 2 * ring_degree
    if (wrong := np.flatnonzero(lengths % parts)).size:
        start, length = int(edges[wrong[0]]), int(lengths[wrong[0]])
        raise LayoutError(
            f"zigzag at ring degree {ring_degree}: the segment at token {start} has {length} tokens, not a multiple"
            f" of {parts}; align documents to 2 * the largest ring degree"
        )
    chunk = lengths // parts
    ranks = np.arange(ring_degree)[:, None, None]
    which = np.concatenate([ranks, parts - 1 - ranks], axis=2)  # ring, 1, 2
    start = edges[None, :-1, None] + which * chunk[None, :, None]  # ring, segments, 2
    rows = np.broadcast_arrays(ranks, start, chunk[None, :, None])
    return merge_adjacent(np.stack([row.reshape(-1) for row in rows], axis=1))


DEFINED: dict[str, Callable[[Int64[np.ndarray, "segments_plus_1"], int], Int32[np.ndarray, "runs 3"]]] = {
    "contiguous": lambda edges, ring_degree: contiguous_runs(int(edges[-1]), ring_degree),
    "zigzag": zigzag_runs,
}
"""The schemes that have a definition: runs from the segments' edges and the ring degree."""


def define_runs(
    scheme: str, edges: Int64[np.ndarray, "segments_plus_1"], ring_degree: int
) -> Int32[np.ndarray, "runs 3"]:
    """The layout that a scheme's definition gives.

    Args:
        scheme: a key of :data:`DEFINED`.
        edges: of the pack's segments, from 0 to its length, see :func:`segment_edges`.
        ring_degree: number of ring ranks.

    Raises:
        LayoutError: the scheme has no definition, or the lengths do not divide.
    """
    if scheme not in DEFINED:
        raise LayoutError(f"scheme {scheme!r} has no definition; {' and '.join(DEFINED)} have one")
    return DEFINED[scheme](edges, ring_degree)

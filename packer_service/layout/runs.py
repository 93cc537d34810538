"""Rows (ring_rank, start, length) from other forms of a layout."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64


def merge_adjacent(runs: Int64[np.ndarray, "rows 3"]) -> Int32[np.ndarray, "runs 3"]:
    """Drop empty rows, and join neighbouring rows of a rank where the second starts at the end of the first."""
    runs = runs[runs[:, 2] > 0]
    if not len(runs):
        return np.zeros((0, 3), np.int32)
    rank, start, length = runs.T
    first = np.concatenate([[True], (rank[1:] != rank[:-1]) | (start[:-1] + length[:-1] != start[1:])])
    heads = np.flatnonzero(first)
    return np.stack([rank[heads], start[heads], np.add.reduceat(length, heads)], axis=1).astype(np.int32)


def runs_from_owners(owners: Int32[np.ndarray, "blocks"], block_size: int) -> Int32[np.ndarray, "runs 3"]:
    """The layout in which block b of ``block_size`` tokens is on rank ``owners[b]``, in natural order on each rank."""
    blocks = np.argsort(owners, kind="stable").astype(np.int64)
    sizes = np.full(len(blocks), block_size, np.int64)
    return merge_adjacent(np.stack([owners[blocks].astype(np.int64), blocks * block_size, sizes], axis=1))

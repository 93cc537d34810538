"""Simple ways to deal blocks to ranks, where the searches start. Each gives every rank the same number of blocks."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64


def round_robin(blocks: int, ring_degree: int) -> Int32[np.ndarray, "blocks"]:
    """Block b on rank ``b mod R``: spreads every document evenly, at the price of moving all of its keys."""
    return (np.arange(blocks) % ring_degree).astype(np.int32)


def consecutive(blocks: int, ring_degree: int) -> Int32[np.ndarray, "blocks"]:
    """Rank r has the r-th of R equal ranges: the fewest keys to move, and no balance."""
    return (np.arange(blocks) * ring_degree // blocks).astype(np.int32)


def head_tail(blocks: int, ring_degree: int) -> Int32[np.ndarray, "blocks"]:
    """Rank r has the r-th range from the front and the r-th from the back, an equal number of blocks in all.

    With an even number of blocks per rank this is the layout of torch's and Megatron's context parallelism. With an odd
    number the range at the front is one block shorter than the one at the back.
    """
    each = blocks // ring_degree
    owners = np.empty(blocks, np.int32)
    front = each // 2
    for rank in range(ring_degree):
        owners[rank * front : (rank + 1) * front] = rank
        owners[blocks - (rank + 1) * (each - front) : blocks - rank * (each - front)] = rank
    return owners


def rounded(
    runs: Int32[np.ndarray, "runs 3"], block_size: int, loads: Int64[np.ndarray, "blocks"], ring_degree: int
) -> Int32[np.ndarray, "blocks"]:
    """A layout of tokens as one of blocks: each block goes to the rank that holds its middle token.

    Ranks left with too many blocks give their lightest to the first ranks with too few.
    """
    by_start = runs[np.argsort(runs[:, 1], kind="stable")]
    middles = np.arange(len(loads)) * block_size + block_size // 2
    owners = by_start[np.searchsorted(by_start[:, 1], middles, side="right") - 1, 0].astype(np.int32)
    each = len(loads) // ring_degree
    spare: list[int] = []
    for rank in range(ring_degree):
        mine = np.flatnonzero(owners == rank)
        spare += mine[np.argsort(loads[mine], kind="stable")][: max(0, len(mine) - each)].tolist()
    missing = np.maximum(0, each - np.bincount(owners, minlength=ring_degree))
    owners[spare] = np.repeat(np.arange(ring_degree, dtype=np.int32), missing)
    return owners


def longest_first(loads: Int64[np.ndarray, "blocks"], ring_degree: int) -> Int32[np.ndarray, "blocks"]:
    """Blocks by falling load, each to the rank of least load that has room (Graham's LPT rule with equal counts)."""
    room = np.full(ring_degree, len(loads) // ring_degree)
    load = np.zeros(ring_degree, np.int64)
    full = np.iinfo(np.int64).max
    owners = np.empty(len(loads), np.int32)
    for block in np.argsort(-loads, kind="stable").tolist():
        rank = int(np.argmin(np.where(room > 0, load, full)))
        owners[block] = rank
        load[rank] += loads[block]
        room[rank] -= 1
    return owners

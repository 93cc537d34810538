"""Simple deals of equally many blocks to each rank, where the searches start, and the generator they draw from."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64

from preshard.packer_service.numerics import compiled


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


def round_to_blocks(
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


NEAR = 8
"""Largest distance of two near blocks."""


@compiled
def next_random(state: np.uint64) -> np.uint64:
    """The next value of Marsaglia's 64-bit xorshift generator ("Xorshift RNGs", 2003); ``state`` is never 0.

    A search draws from it so that its result depends on its arguments alone, on every machine.
    """
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    return state


@compiled
def remainder(value: np.int64, count: int) -> np.int64:
    """``value % count`` for a value from 0 to below 2**56.

    Dividing whole numbers takes a processor longer than all else of most draws. A quotient of floating-point numbers is
    off by a few at most, and put right.
    """
    rest = value - np.int64(np.float64(value) * (1.0 / count)) * count
    while rest < 0:
        rest += count
    while rest >= count:
        rest -= count
    return rest


@compiled
def draw_pair(state: np.uint64, count: int) -> tuple[np.int64, np.int64]:
    """Two of ``count`` blocks, near each other for every second state; the second may lie outside of them."""
    first = remainder(np.int64(state >> np.uint64(8)), count)
    second = remainder(np.int64(state >> np.uint64(32)), count)
    if state & np.uint64(1):
        second = first + 1 + second % NEAR if state & np.uint64(2) else first - 1 - second % NEAR
    return first, second

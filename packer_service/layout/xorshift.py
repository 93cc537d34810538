"""The generator from which the searches draw, and how they draw two blocks to exchange."""

from __future__ import annotations

import numpy as np

from preshard.packer_service.numerics.compiled import compiled

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
def drawn_pair(state: np.uint64, count: int) -> tuple[np.int64, np.int64]:
    """Two of ``count`` blocks, near each other for every second state; the second may lie outside of them."""
    first = remainder(np.int64(state >> np.uint64(8)), count)
    second = remainder(np.int64(state >> np.uint64(32)), count)
    if state & np.uint64(1):
        second = first + 1 + second % NEAR if state & np.uint64(2) else first - 1 - second % NEAR
    return first, second

"""Compilation of the kernels, cached where the machine lets us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``numba.njit`` with its result cached on disk; without the cache where no folder for it can be written.

    Numba raises ``RuntimeError`` at decoration when neither ``__pycache__`` nor the user's cache folder is writable
    (a read-only image, a worker without a home). A kernel must work there too, only its first call is slower.
    """
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)


@compiled
def next_random(state: np.uint64) -> np.uint64:
    """The next value of Marsaglia's 64-bit xorshift generator ("Xorshift RNGs", 2003); ``state`` is never 0.

    A search draws from it so that its result depends on its arguments alone, on every machine.
    """
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    return state

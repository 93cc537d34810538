"""Compiles the loops of the planner and the layouts, with a cache on disk where there can be one."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

ZERO, ONE = np.int64(0), np.int64(1)
"""0 and 1 like any other integer. To Numba a literal is of a type of its own, and a function that is given literals in
some calls and other integers in others is compiled twice."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``numba.njit`` with the machine code cached on disk; without the cache where no folder for it can be written.

    Numba raises RuntimeError at decoration where neither ``__pycache__`` nor the user's cache folder is writable, as in
    a read-only image without a home. A kernel must work there, too: only its first call takes some seconds longer.
    """
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)

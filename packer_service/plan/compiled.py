"""Compilation of the planner's loops, cached where the machine lets us."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """``numba.njit`` with the machine code cached on disk; without the cache where no folder for it can be written.

    Numba raises RuntimeError at decoration when it finds no such folder, as in a read-only image without a home: the
    planner must work there too, only its first plan takes some seconds longer.
    """
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)

"""Compilation of the kernels, cached where the machine lets us."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
T = TypeVar("T")


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """``numba.njit`` with its result cached on disk; without the cache where no folder for it can be written.

    Numba raises ``RuntimeError`` at decoration when neither ``__pycache__`` nor the user's cache folder is writable
    (a read-only image, a worker without a home). A kernel must work there too, only its first call is slower.
    """
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)

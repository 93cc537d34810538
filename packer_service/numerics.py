"""Compiles the loops of the planner and the layouts, with a cache on disk where there can be one."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numba
import numpy as np
from numba.core import event
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

ZERO, ONE = np.int64(0), np.int64(1)
"""0 and 1 like any other integer. To Numba a literal is of a type of its own, and a function that is given literals in
some calls and other integers in others is compiled twice."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``numba.njit`` with the machine code cached on disk; without the cache where no folder for it can be written.

    Numba raises RuntimeError at decoration where neither ``__pycache__`` nor the user's cache folder is writable, as in
    a read-only image without a home. A kernel must work there, too: only its first call takes some seconds longer.

    Numba takes its cache for fresh while the function's own file is, although it holds what is called in other files:
    here its name has the contents of them all, so that an update never runs what it replaces.
    """
    try:
        kernel = numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)
    if numba.config.DISABLE_JIT:  # kernel is the function itself
        return kernel
    stamp = _stamp_sources(function, kernel)
    kept = kernel._cache
    kept._cache_file = IndexDataCacheFile(kept.cache_path, f"{kept._impl.filename_base}.{stamp}", stamp)
    return kernel


@contextmanager
def hear_of_compiling(begins: Callable[[], None], ends: Callable[[], None]) -> Iterator[None]:
    """Calls ``begins`` whenever a loop starts to be compiled, and ``ends`` when that and all that it calls is done.

    A loop that comes from the cache is not heard.
    """
    listener = _Compiling(begins, ends)
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)


class _Compiling(event.Listener):
    def __init__(self, begins: Callable[[], None], ends: Callable[[], None]) -> None:
        self.begins, self.ends, self.depth = begins, ends, 0

    def on_start(self, event: event.Event) -> None:  # noqa: ARG002
        self.depth += 1
        if self.depth == 1:
            self.begins()

    def on_end(self, event: event.Event) -> None:  # noqa: ARG002
        self.depth -= 1
        if not self.depth:
            self.ends()


def _stamp_sources(function: Callable[..., Any], kernel: Any) -> str:
    """A name for the contents of a function's module, of those whose kernels and classes it uses, and its constants."""
    modules, constants = {function.__module__}, []
    for name, value in sorted(function.__globals__.items()):
        if isinstance(value, Dispatcher):
            modules |= getattr(value, "modules", {value.__module__})
        elif isinstance(value, type):
            modules.add(value.__module__)
        elif isinstance(value, int | float | np.number):
            constants.append(f"{name}={value!r}")
    kernel.modules = modules
    contents = [_digest_source(module) for module in sorted(modules)]
    return hashlib.sha256("\n".join([*contents, *constants]).encode()).hexdigest()[:16]


@cache
def _digest_source(module: str) -> str:
    """Hash of a module's source; a module without one counts by its name."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        source = module
    return hashlib.sha256(source.encode()).hexdigest()

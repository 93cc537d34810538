"""Temporary folders of a process, removed however it ends, and freed memory, given back."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

TRIES = 3
"""Times that a folder is removed: compiled code that is still at work may put a file into it meanwhile."""

_folders = set[str]()
"""Temporary folders of this process that are in use."""


@contextmanager
def scratch_folder(prefix: str) -> Iterator[str]:
    """The path of a new folder in the folder for temporary files (``TMPDIR``), which is removed with the block.

    Args:
        prefix: what its name begins with.
    """
    with tempfile.TemporaryDirectory(prefix=prefix) as path:
        _folders.add(path)
        try:
            yield path
        finally:
            _folders.discard(path)


def remove_scratch_folders() -> None:
    """Removes all of this process that are in use, for a way out that runs no ``finally``."""
    for path in list(_folders):
        for _ in range(TRIES):
            shutil.rmtree(path, ignore_errors=True)


os.register_at_fork(after_in_child=_folders.clear)  # a forked process has none of its own


def give_back_memory() -> None:
    """Returns what is freed already: Arrow's pool and the C library both keep some of it for later.

    What one of them keeps is of no use to the other. A process that runs many tasks, or that goes from columns in
    Arrow to arrays in NumPy, would need the largest amounts of both at once.
    """
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError):  # of the C libraries, only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


M_ARENA_MAX = -8
"""glibc's number for the most arenas."""


def keep_little_memory() -> None:
    """Makes this process and those forked from it, whose threads come and go, keep little of what they free.

    Arrow's own pool and glibc would each have a heap for every thread: 24 rankings of a million packs by 8 threads took
    930 MiB instead of 630, and a quarter more time.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)

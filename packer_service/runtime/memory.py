"""Memory that a task leaves behind in its process, given back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import pyarrow as pa


def give_back_memory() -> None:
    """Returns what is freed already: Arrow's pool and the C library both keep some of it for later.

    What one of them keeps is of no use to the other. A process that runs many tasks, or that goes from columns in
    Arrow to arrays in NumPy, would need the largest amounts of both at once.
    """
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError):  # of the C libraries, only glibc has it
        ctypes.CDLL(None).malloc_trim(0)

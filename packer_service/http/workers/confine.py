"""The bounds that a process which reads datasets sets itself before it reads anything."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

BEHIND = 2
"""How much less urgent (``nice``) reading is than listening: clients of kept answers do not wait for cold ones."""

_PR_SET_PDEATHSIG = 1


def confine(memory: int) -> None:
    """Bounds this process's memory, and ends it with the one that it was forked from.

    Args:
        memory: most bytes of private memory beyond what was imported before the fork.
    """
    os.setpgid(0, 0)  # what it starts ends with it
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the kernel was told
            os._exit(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with suppress(OSError):
        os.nice(BEHIND)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # not the address space: shared libraries, and what an allocator only reserves, take no memory. The hard limit
    # stays, for the process that makes a plan has a limit of its own.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory + _data_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _data_bytes() -> int:
    """Bytes that count against the limit already: shared with the process that this one was forked from."""
    with suppress(OSError), Path("/proc/self/status").open(encoding="ascii") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0

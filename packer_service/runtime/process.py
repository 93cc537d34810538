"""A process of ours that may be killed: how it is started, what bounds it, and how it ends with the one that uses it.

What a decoder, a chat template, a user's function or a reader of a hostile dataset may do to its process follows from
here alone. How it is asked is another matter: :mod:`.workers` starts one for calls, one after the other;
:mod:`.forks` forks many from one that has imported what they need.

Imported in the process itself, so it imports next to nothing.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

MAX_ANSWER = 1 << 30
"""Bytes of the longest answer that is read; a longer one was written by a process with a broken heap."""

_PR_SET_PDEATHSIG = 1


def start(module: str, *arguments: object, descriptors: list[int], **environment: str) -> subprocess.Popen[bytes]:
    """Runs a module of ours in a process that has nothing of this one's but some descriptors.

    Args:
        module: its name.
        arguments: what ``sys.argv`` has besides it.
        descriptors: the ends of pipes that stay open in it.
        environment: variables besides :func:`worker_environment`.
    """
    import subprocess

    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=worker_environment() | environment,
    )


def worker_environment() -> dict[str, str]:
    """Ours, with the modules that we find, and with libraries that keep to one CPU and to the memory that they use.

    Without the service's token, which no process needs that reads files of others.
    """
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    ours = {name: value for name, value in os.environ.items() if name != "PRESHARD_TOKEN"}
    return {**ours, **threads, "PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system"}


def confine(memory: int) -> None:
    """Bounds this process, for as long as it lives: nothing in it can lift a bound again.

    Args:
        memory: most bytes of private memory; 0 for no bound. Not of the address space: shared libraries, and what an
            allocator only reserves, take no memory.
    """
    # an interrupt at the terminal reaches both processes, and the caller decides what becomes of it
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for default in (signal.SIGIO, signal.SIGXCPU, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(default, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def data_bytes() -> int:
    """Bytes that count against the bound already; a fork shares them with the process that it was forked from."""
    with suppress(OSError), Path("/proc/self/status").open(encoding="ascii") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0


def end_with_pipe(lifeline: int) -> None:
    """Ends this process when a pipe closes, whatever runs then: the kernel's SIGIO ends a process by default.

    The decoder could keep a thread that waits from running, and the kernel's death signal comes when the caller's
    thread ends, not its process.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    ready, _, _ = select.select([lifeline], [], [], 0)
    if ready:  # closed before the signal was asked for
        os._exit(0)


def end_with_parent() -> None:
    """Ends this process, and what it starts, with the one that forked it, which has a single thread."""
    os.setpgid(0, 0)
    if sys.platform == "linux":
        import ctypes

        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the kernel was told
            os._exit(0)

"""Processes with all that they started, ended as a machine ends that loses its power."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def descendants(root: int) -> list[int]:
    """Ids of a process and of all that it and those that it started have started."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its descendants at one moment."""
    pids = descendants(process.pid) if process.poll() is None else []
    # stopped first, so that none can act on the end of another
    _signal(pids, signal.SIGSTOP)
    _signal(pids, signal.SIGKILL)
    process.wait()


def stop_tree(process: subprocess.Popen[bytes], seconds: float = 15) -> None:
    """Asks a process to end, waits for that, and ends what it left behind."""
    pids = descendants(process.pid) if process.poll() is None else []
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)
    _signal(pids, signal.SIGKILL)
    process.wait()


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

"""Processes with all that they started, ended as a machine ends that loses its power."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

from served import descendants


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

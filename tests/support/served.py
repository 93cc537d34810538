"""`preshard serve` as a process of its own, for tests and measurements; and the processes that it starts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

_SERVE = """
import json, sys
from preshard.packer_service.http.serve import serve_folder
from preshard.packer_service.runtime.interrupt import interruptible
root, settings = sys.argv[1:]
with interruptible():
    serve_folder(root, "127.0.0.1", 0, **json.loads(settings))
"""


@contextlib.contextmanager
def served(root: Path | str, **settings: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A service in a process of its own, and its port; killed at the end if it still runs.

    Args:
        root: the folder to serve.
        settings: fields of ``ServiceSettings``.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(root), json.dumps(settings)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        port = int(process.stderr.readline().rstrip("/\n").rpartition(":")[2])
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, port
    finally:
        process.kill()
        process.wait()


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, directly or not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return [pid]


def is_running(pid: int) -> bool:
    """Whether a process is there and not merely unburied."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def memory_bytes(pids: list[int]) -> int:
    """Memory that processes take together; what several share counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += psutil.Process(pid).memory_full_info().pss
    return total


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used until now; 0 for one that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return sum(psutil.Process(pid).cpu_times()[:2])
    return 0.0

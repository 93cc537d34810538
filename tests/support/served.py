"""`preshard serve` as a process of its own, for tests and measurements; and the processes that it starts."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

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
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = stat.read_text(encoding="ascii", errors="replace")
            parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and not merely unburied."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def memory_bytes(pids: list[int]) -> int:
    """What processes take together; what several share counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) << 10
    return total


def processor_seconds(pid: int) -> float:
    """What a process has used of processors until now; 0 for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

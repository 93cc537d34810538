"""Memory of a process and of everything that it started, from /proc."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path


class PeakMemory:
    """The most memory that each process below one took, and that all took at once.

    Args:
        root: process id of the first. Ray starts its own processes below it.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.most_together = 0
        """Largest sum of resident bytes over all processes at one moment; shared pages count once for each."""
        self.most_shared_out = 0
        """The same with each shared page counted once in all (PSS): what the machine needs. Looked at every second."""
        self.cpu_seconds = 0.0
        """Processor time of all processes, as last seen."""
        self._peaks: dict[int, tuple[str, int, int]] = {}

    def watch_until_end(self, job: subprocess.Popen[bytes] | subprocess.Popen[str], every: float = 0.1) -> int:
        """Looks at the processes until the first has ended; gives its exit status."""
        last = 0.0
        while job.poll() is None:
            self.look()
            if time.monotonic() - last >= 1:
                last = time.monotonic()
                self.cpu_seconds = max(self.cpu_seconds, cpu_seconds(self.root))
                self.most_shared_out = max(self.most_shared_out, sum(map(_proportional, _below(self.root))))
            time.sleep(every)
        return int(job.returncode)

    def look(self) -> None:
        together = 0
        for pid in _below(self.root):
            try:
                kind = _kind(Path(f"/proc/{pid}/cmdline").read_bytes())
                facts = dict(
                    line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
                )
            except OSError:  # it has ended meanwhile
                continue
            if "VmHWM" not in facts:
                continue
            resident, private, now = (_kilobytes(facts[name]) for name in ("VmHWM", "RssAnon", "VmRSS"))
            together += now
            _, before, private_before = self._peaks.get(pid, ("", 0, 0))
            self._peaks[pid] = (kind, max(before, resident), max(private_before, private))
        self.most_together = max(self.most_together, together)

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """For each kind of process, the most bytes that one of them had: resident, and private of them (as seen)."""
        kinds: dict[str, tuple[int, int]] = {}
        for kind, resident, private in self._peaks.values():
            most = kinds.get(kind, (0, 0))
            kinds[kind] = (max(most[0], resident), max(most[1], private))
        return kinds


def cpu_seconds(root: int) -> float:
    """Processor time of a process, of all below it, and of those that have ended and were waited for."""
    ticks = 0
    for pid in _below(root):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _proportional(pid: int) -> int:
    """Bytes of a process in memory, each page divided by the processes that have it."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return _kilobytes(line.partition(":")[2])
    return 0


def _kilobytes(value: str) -> int:
    return int(value.split(maxsplit=1)[0]) * 1024


def _kind(command: bytes) -> str:
    words = command.decode(errors="replace")
    if "runtime.worker_process" in words:
        return "decoder"
    if words.startswith("ray::"):
        return "task"
    return "driver" if "packer_service" in words else "Ray"


def _below(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text(encoding="utf-8")
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found

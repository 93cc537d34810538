"""The most memory that this process has held. ``getrusage`` would begin with what its parent process held."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def peak() -> int:
    """Most bytes in memory since :func:`forget_peak`; 0 where the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def forget_peak() -> None:
    """Starts measuring anew; where the system cannot, the peak is that of the process's whole life."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

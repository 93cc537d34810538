"""The most memory that this process held. Not ``getrusage``'s, which begins with what the starting process held."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def peak() -> int:
    """Bytes in memory at most since :func:`forget_peak`; 0 where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def forget_peak() -> None:
    """Begins to measure anew; where the system cannot, the peak is that of the whole process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

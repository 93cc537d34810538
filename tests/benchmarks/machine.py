"""What the benchmarks ran on: the line that goes with every figure."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def hardware() -> str:
    """Date, processor, CPUs and versions."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor()
    date = datetime.datetime.now(tz=datetime.UTC).date()
    return f"{date}, {model}, {os.cpu_count()} CPUs, Python {platform.python_version()}, numpy {np.__version__}"


class Others:
    """How busy everybody else has kept the machine since this was made: on a quiet one, a few hundredths.

    Args:
        own: gives the processor time of what is measured, in seconds, as of now.
    """

    def __init__(self, own: Callable[[], float]) -> None:
        self._own = own
        self._began = time.monotonic(), _busy_seconds(), own()

    def share(self) -> float:
        """Processor time of others over all that there was."""
        began, busy, own = self._began
        there_was = (time.monotonic() - began) * (os.cpu_count() or 1)
        return max(_busy_seconds() - busy - (self._own() - own), 0) / there_was

    def __str__(self) -> str:
        return f"others kept {100 * self.share():.0f}% of the machine busy"


def _busy_seconds() -> float:
    """Processor time of all CPUs that was not idle, since the machine started."""
    first = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0].split()[1:]
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, first[:8])
    return (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")

"""The machine the benchmarks ran on: the line that goes with every figure."""

from __future__ import annotations

import datetime
import os
import platform
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil


def hardware() -> str:
    """Date, processor, CPUs and versions."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor()
    date = datetime.datetime.now(tz=datetime.UTC).date()
    return f"{date}, {model}, {os.cpu_count()} CPUs, Python {platform.python_version()}, numpy {np.__version__}"


def cpu_seconds(root: int) -> float:
    """Processor time of a process, of all below it, and of those that have ended and were waited for."""
    seconds, first = 0.0, psutil.Process(root)
    for process in (first, *first.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])
    return seconds

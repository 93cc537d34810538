"""What the benchmarks ran on: the line that goes with every figure."""

from __future__ import annotations

import datetime
import os
import platform
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

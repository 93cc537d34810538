"""A trace of a few steps of a run, by ``torch.profiler``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

SKIPPED, WARMED_UP, RECORDED = 2, 1, 3
"""Steps before the profiler starts, steps that it runs without keeping them, and steps of the trace.

The first steps allocate memory and compile kernels, which later ones do not.
"""


@contextmanager
def profiled(folder: Path | None) -> Iterator[Callable[[], None]]:
    """Profiles a run; call what it gives after each step. Without a folder that does nothing.

    Each rank writes ``rank-N.json`` into the folder, which ``chrome://tracing`` and Perfetto open.
    """
    if folder is None:
        yield lambda: None
        return
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]

    def write(found: profile) -> None:
        found.export_chrome_trace(str(folder / f"rank-{dist.get_rank()}.json"))

    with profile(
        activities=activities,
        schedule=schedule(wait=SKIPPED, warmup=WARMED_UP, active=RECORDED, repeat=1),
        on_trace_ready=write,
    ) as profiler:
        yield profiler.step

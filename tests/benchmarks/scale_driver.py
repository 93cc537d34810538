"""The driver of ``scale.py``: a process of its own that plans what is kept, and says what that took as JSON."""

from __future__ import annotations

import hashlib
import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from scale_drawn import N_FRAGMENTS

from preshard.packer_service.ingest.source.file import Fragment, SourceFile
from preshard.packer_service.job.plan import Planned
from preshard.packer_service.job.planning.measured import find_measured
from preshard.packer_service.job.planning.partitions import PartitionPlanner
from preshard.packer_service.plan.order import straggler_ratio
from preshard.packer_service.runtime.progress import NoProgress
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import WORK

DP_SIZE = 64
TASKS_OF_A_PROCESS = 8
"""A process ends after so many tasks, as Ray's do after some: its memory is what a few in a row leave."""


class Peak:
    """The most memory of this process since it was made, from Linux."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        self.before = self.mib()

    def mib(self) -> float:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        [peak] = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
        return peak / 1024


class Processes:
    """An executor of some processes.

    Attributes:
        peaks: by kind of task, how many there were, and the largest memory of a process before one and in one (MiB).
    """

    def __init__(self, n: int) -> None:
        self.n, self.peaks = n, dict[str, tuple[int, float, float]]()

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        name = getattr(function, "func", function).__name__
        with get_context("spawn").Pool(self.n, maxtasksperchild=TASKS_OF_A_PROCESS) as pool:
            for index, result, before, peak in pool.imap_unordered(partial(_task, function=function), enumerate(items)):
                tasks, most_before, most = self.peaks.get(name, (0, 0.0, 0.0))
                self.peaks[name] = tasks + 1, max(most_before, before), max(most, peak)
                yield index, result

    @property
    def peak_mib(self) -> float:
        return max((most for *_, most in self.peaks.values()), default=0.0)


def _task(numbered: tuple[int, Any], function: Callable[[Any], Any]) -> tuple[int, Any, float, float]:
    index, item = numbered
    peak = Peak()
    result = function(item)
    return index, result, peak.before, peak.mib()


def drive(out: Path, processes: int, partition: int, tables: str) -> None:
    """Plans what is kept in the work folder; prints what it measured."""
    work = out / WORK
    executor, folder, peak, seconds = Processes(processes), Folder(str(work)), Peak(), dict[str, float]()
    n_fragments = int((work / N_FRAGMENTS).read_text(encoding="utf-8"))
    file = SourceFile(label="rows.jsonl", uri="/rows.jsonl", kind="jsonl", size=1, mtime_ns=0)
    fragments = [Fragment(file=file, start=i, end=i + 1) for i in range(n_fragments)]
    planner = PartitionPlanner(
        work=folder, config=PackConfig(), executor=executor, progress=NoProgress(), partition_rows=partition
    )
    began = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        seconds[name] = time.perf_counter() - began
        began = time.perf_counter()

    plan = planner.kept([file])
    if plan is None:
        planner.merge(fragments, find_measured(folder, range(n_fragments)))
        lap("sorted runs")
        plan = planner.plan([file], {})
    lap("partitions")
    rows = _hash_of_rows(plan)
    lap("stream of rows")
    plan_mib, bytes_of = [peak.mib(), executor.peak_mib], dict[str, int]()
    if tables:
        from scale_tables import FEW_LOADS, write_tables  # it loads decoders, and plans are made without

        config = PackConfig() if tables == "full" else FEW_LOADS
        took, bytes_of = write_tables(out, plan, executor, config, NoProgress())
        seconds |= took
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found = {
        "plan_mib": plan_mib,
        "driver_mib": peak.mib(),
        "peaks": executor.peaks,
        "bytes": bytes_of,
        "cpu": sum(each.ru_utime + each.ru_stime for each in usage),
        "seconds": seconds,
        "rows": rows,
    }
    print(json.dumps(found | _figures(plan)))


def _hash_of_rows(plan: Planned) -> str:
    """Reads the plan as finishing does for the dataset's id."""
    identity = hashlib.sha256()
    for table in plan.rows():
        identity.update(table["doc_id"].combine_chunks().buffers()[2])
        identity.update(table["pack_id"].to_numpy())
        identity.update(table["start"].to_numpy())
    return identity.hexdigest()


def _figures(plan: Planned) -> dict[str, Any]:
    config, parts, costs = PackConfig(), plan.partitions, plan.costs()
    tokens, images = sum(part.aligned for part in parts), sum(part.images for part in parts)
    bound = max(-(-tokens // config.seq_len), -(-images // (config.max_images or images)))
    return {
        "documents": plan.n_documents,
        "rejected": plan.n_rejected,
        "partitions": len(parts),
        "packs": plan.n_packs,
        "over": plan.n_packs / bound,
        "fill": sum(part.tokens for part in parts) / (plan.n_packs * config.seq_len),
        "straggler": straggler_ratio(costs, DP_SIZE),
        "left": sum(part.left for part in parts),
    }

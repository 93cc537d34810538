"""The stages of a job that run as tasks: measure, plan, write. Each continues where an earlier run stopped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from preshard.packer_service.ingest.model import PackedFor
from preshard.packer_service.ingest.source.file import Fragment
from preshard.packer_service.job.ownership import Claim
from preshard.packer_service.job.plan import Planned
from preshard.packer_service.job.planning.measure import measure_and_keep
from preshard.packer_service.job.planning.measured import COPIES, KeptFragment, find_measured
from preshard.packer_service.job.planning.partitions import PartitionPlanner
from preshard.packer_service.job.resume import kept_shards
from preshard.packer_service.job.writing.records import build_and_keep
from preshard.packer_service.runtime.executors import ChosenItems, Executor, TaskCounts
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.files.filesystem import join
from preshard.schemas.manifest import PLANNED, LayerMasks

T = TypeVar("T", bound=TaskCounts)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingJob:
    """What every stage of a job needs."""

    claim: Claim
    config: PackConfig
    executor: Executor
    progress: Progress
    few_bytes: int
    partition_rows: int

    @property
    def folder(self) -> Folder:
        return self.claim.folder

    @property
    def work(self) -> Folder:
        return self.claim.work


def plan(
    job: PackingJob,
    fragments: Sequence[Fragment],
    unused: dict[str, int],
    lap: Callable[[str], None],
    layers: LayerMasks | None,
) -> Planned:
    """The plan: that of an earlier run, or one of what this run and earlier ones have measured.

    ``layers`` are the model's, where some have a window.
    """
    planner = PartitionPlanner(
        work=job.work,
        config=job.config,
        executor=job.executor,
        progress=job.progress,
        partition_rows=job.partition_rows,
        layers=layers,
    )
    files = list(dict.fromkeys(fragment.file for fragment in fragments))
    planned = planner.kept(files)
    if planned is not None:
        job.progress.note("found the plan of an earlier run")
        lap("measure_seconds")
    else:
        kept = _measure_missing(job, planner, fragments)
        lap("measure_seconds")
        job.claim.check()
        planner.merge(fragments, kept)
        planned = planner.plan(files, unused)
    lap("plan_seconds")
    return planned


def with_copies(job: PackingJob, fragments: Sequence[Fragment]) -> list[Fragment]:
    """The fragments, with a place in the work folder for a copy of each compressed file."""
    files = {file: number for number, file in enumerate(dict.fromkeys(fragment.file for fragment in fragments))}

    def placed(fragment: Fragment) -> Fragment:
        if fragment.file.compression is None:
            return fragment
        # Not .zst: pyarrow compresses by itself what is written to a store under such a name.
        copy = join(job.work.location, COPIES, f"{files[fragment.file]:08d}.frames")
        return replace(fragment, file=replace(fragment.file, copy=copy))

    return [placed(fragment) for fragment in fragments]


def _measure_missing(
    job: PackingJob, planner: PartitionPlanner, fragments: Sequence[Fragment]
) -> dict[int, KeptFragment]:
    """Measures what no earlier run has measured; all fragments by number."""
    kept = find_measured(job.work, range(len(fragments)), unreachable=planner.has_runs())
    missing = [index for index in range(len(fragments)) if index not in kept]
    if len(missing) < len(fragments):
        job.progress.note(f"found {len(fragments) - len(missing)} of {len(fragments)} fragments measured before")
    measure = partial(measure_and_keep, config=job.config, work=job.work.location)
    for result in _run_tasks(job, "measured fragments", measure, [(i, fragments[i]) for i in missing]):
        kept[result.kept.number] = result.kept
    return kept


def write_missing(job: PackingJob, planned: Planned, target: PackedFor) -> int:
    """Builds every shard that is not there as its record says, and returns the number of all."""
    shards = planned.shards(job.config.packs_per_shard)
    job.work.write(PLANNED, json.dumps({"shards": len(shards)}).encode())
    kept = kept_shards(job.folder, len(shards), executor=job.executor, few_bytes=job.few_bytes, progress=job.progress)
    build = partial(
        build_and_keep,
        files=planned.files,
        sources=planned.sources,
        config=job.config,
        target=target,
        out=job.folder.location,
    )
    for _ in _run_tasks(job, "written shards", build, ChosenItems(shards, np.flatnonzero(~kept).tolist())):
        pass
    return len(shards)


def _run_tasks(job: PackingJob, what: str, function: Callable[[Any], T], items: Sequence[Any]) -> Iterator[T]:
    """Runs tasks that keep their results themselves, reports their progress, and yields what they counted."""
    amounts: Counter[str] = Counter()
    for done, (_, result) in enumerate(job.executor.run(function, items), start=1):
        amounts.update(result.amounts)
        job.progress.step(what, done, len(items), amounts)
        yield result

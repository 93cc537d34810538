"""The stages of a job that run as tasks: measure, plan, write. Each continues where an earlier run stopped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool

from preshard.packer_service.ingest.source.file import Fragment
from preshard.packer_service.job.blame import Blame
from preshard.packer_service.job.ownership import Claim
from preshard.packer_service.job.plan import Planned
from preshard.packer_service.job.planning.measure import measure_and_keep
from preshard.packer_service.job.planning.measured import COPIES, KeptFragment, find_measured
from preshard.packer_service.job.planning.partitions import PartitionPlanner
from preshard.packer_service.job.resolve import ResolvedJob
from preshard.packer_service.job.writing.records import GROUP, build_and_keep, find_kept, group_folder, record_name
from preshard.packer_service.runtime.executors import Executor, MadeItems, OnNodes, PlainExecutor, TaskCounts
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.shards.store import Folder
from preshard.schemas.files.filesystem import join
from preshard.schemas.manifest import PLANNED, SHARDS, WORK
from preshard.schemas.members import shard_name

CHECKED_TOGETHER = 16
"""Shards that one task checks: their records take a request each, even where there is none."""

FEW_SHARDS = 128
"""Most shards of an earlier run that this process checks itself; a shard in an object store takes several requests."""

FEW_BYTES = 2**30
"""Most bytes of those shards that this process hashes itself: a few seconds, where Ray takes nine to start."""

T = TypeVar("T", bound=TaskCounts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """The stages of a job in a folder that is claimed for it."""

    claim: Claim
    executor: Executor
    progress: Progress
    few_bytes: int
    partition_rows: int

    def plan(self, job: ResolvedJob, lap: Callable[[str], None]) -> Planned:
        """The plan: that of an earlier run, or one of what this run and earlier ones have measured."""
        planner = PartitionPlanner(
            work=self.claim.work,
            config=job.config,
            executor=self.executor,
            progress=self.progress,
            partition_rows=self.partition_rows,
            layers=job.target.layers,
        )
        fragments = self._with_copies(job.fragments)
        files = list(dict.fromkeys(fragment.file for fragment in fragments))
        planned = planner.kept(files)
        if planned is not None:
            self.progress.note("found the plan of an earlier run")
            lap("measure_seconds")
        else:
            kept = self._measure_missing(planner, fragments)
            lap("measure_seconds")
            self.claim.check()
            planner.merge(fragments, kept)
            planned = planner.plan(files, job.sources.unused)
        lap("plan_seconds")
        return planned

    def _with_copies(self, fragments: Sequence[Fragment]) -> list[Fragment]:
        """The fragments, with a place in the work folder for a copy of each compressed file."""
        files = {file: number for number, file in enumerate(dict.fromkeys(fragment.file for fragment in fragments))}

        def placed(fragment: Fragment) -> Fragment:
            if fragment.file.compression is None:
                return fragment
            # Not .zst: pyarrow compresses by itself what is written to a store under such a name.
            copy = join(self.claim.work.location, COPIES, f"{files[fragment.file]:08d}.frames")
            return replace(fragment, file=replace(fragment.file, copy=copy))

        return [placed(fragment) for fragment in fragments]

    def _measure_missing(self, planner: PartitionPlanner, fragments: Sequence[Fragment]) -> dict[int, KeptFragment]:
        """Measures what no earlier run has measured; all fragments by number."""
        work, config, executor = self.claim.work, planner.config, self.executor
        kept = find_measured(work, range(len(fragments)), unreachable=planner.has_runs())
        missing = [index for index in range(len(fragments)) if index not in kept]
        if len(missing) < len(fragments):
            self.progress.note(f"found {len(fragments) - len(missing)} of {len(fragments)} fragments measured before")
        measure = partial(measure_and_keep, config=config, work=work.location)
        blame = Blame(work=work, config=config)
        for _, result in self._run("measured fragments", measure, [(i, fragments[i]) for i in missing]):
            if isinstance(executor, OnNodes):
                blame.check_measured(fragments[result.kept.number], result, executor.node)
            kept[result.kept.number] = result.kept
        return kept

    def write_missing(self, job: ResolvedJob, planned: Planned) -> int:
        """Builds every shard that is not there as its record says, and returns the number of all."""
        shards = planned.shards(job.config.packs_per_shard)
        self.claim.work.write(PLANNED, json.dumps({"shards": len(shards)}).encode())
        folder = self.claim.folder
        kept = kept_shards(
            folder, len(shards), executor=self.executor, few_bytes=self.few_bytes, progress=self.progress
        )
        build = partial(
            build_and_keep,
            files=planned.files,
            sources=planned.sources,
            config=job.config,
            target=job.target,
            out=folder.location,
        )
        missing = np.flatnonzero(~kept).tolist()
        items = MadeItems(len(missing), lambda n: shards[missing[n]])
        blame, executor = Blame(work=self.claim.work, config=job.config), self.executor
        for number, result in self._run("written shards", build, items):
            if isinstance(executor, OnNodes):
                blame.check_written(items[number], planned, result, executor.node)
        return len(shards)

    def _run(self, what: str, function: Callable[[Any], T], items: Sequence[Any]) -> Iterator[tuple[int, T]]:
        """Runs tasks that keep their results themselves, reports their progress, and yields what each counted."""
        amounts: Counter[str] = Counter()
        self.progress.doing(f"{what}: 0 of {len(items)}")
        if len(items) and isinstance(self.executor, OnNodes):  # whose first result may take minutes
            self.progress.note(f"{what}: 0 of {len(items)}")
        for done, (number, result) in enumerate(self.executor.run(function, items), start=1):
            amounts.update(result.amounts)
            self.progress.step(what, done, len(items), amounts)
            yield number, result


def kept_shards(
    folder: Folder, n_shards: int, *, executor: Executor, few_bytes: int, progress: Progress
) -> Bool[np.ndarray, "shards"]:
    """Shards that an earlier run has written, recognised by their hash.

    This process lists the folders of groups alone, and the records of one group; tasks do the rest.

    Args:
        folder: the dataset.
        n_shards: number of all of its shards.
        executor: checks the shards where they are many.
        few_bytes: up to so many bytes are hashed by this process, before a cluster would have started.
        progress: hears what was found.
    """
    kept = np.zeros(n_shards, np.bool_)
    groups = [group for group in _groups(folder) if group * GROUP < n_shards]
    few = _few(folder, groups, few_bytes)
    parts: list[Sequence[int]] = [
        range(first, min(first + CHECKED_TOGETHER, n_shards))
        for group in groups
        for first in range(group * GROUP, min((group + 1) * GROUP, n_shards), CHECKED_TOGETHER)
    ]
    if few is not None:
        parts = [[number] for number in few if number < n_shards]
    checker = executor if few is None else PlainExecutor()
    recorded = done = 0
    for _, (n_recorded, whole) in checker.run(partial(find_kept, out=folder.location), parts):
        recorded, done = recorded + n_recorded, done + 1
        kept[whole] = True
        progress.step("checked shards", done * n_shards // len(parts), n_shards)
    changed = f", {recorded - kept.sum()} changed since" if kept.sum() < recorded else ""
    if recorded:
        progress.note(f"found {kept.sum()} of {n_shards} shards written before{changed}")
    return kept


def _groups(folder: Folder) -> list[int]:
    """The groups of shards that have a folder of records."""
    names = (folder / WORK / SHARDS).entries()
    return sorted(int(name) for name, is_folder in names.items() if is_folder and name.isdigit())


def _few(folder: Folder, groups: Sequence[int], few_bytes: int) -> list[int] | None:
    """The shards with a record, where they are so few that this process checks them; None where they are more."""
    if len(groups) > 1:
        return None
    below = {group: (folder / WORK / group_folder(group)).entries() for group in groups}
    names = {f"{group_folder(group)}/{name}" for group in groups for name in below[group]}
    numbers = [n for group in groups for n in range(group * GROUP, (group + 1) * GROUP) if record_name(n) in names]
    if len(numbers) > FEW_SHARDS:
        return None
    sizes = ((folder / SHARDS).size(shard_name(number)) or 0 for number in numbers)
    return numbers if sum(sizes) <= few_bytes else None

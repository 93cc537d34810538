"""From measured fragments to a plan in partitions: the order of the steps of planning, each of which can be resumed.

An external sort by the hash of the id without an exchange between tasks: runs of neighbouring fragments are sorted,
then each partition reads its range of hashes from all runs. A task keeps its result in the work folder and tells the
driver numbers alone, so that the driver's memory does not grow with documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict

from preshard.packer_service.ingest.source.file import DATASET, Fragment, SourceFile
from preshard.packer_service.job.left_packs import plan_left
from preshard.packer_service.job.measured import FOLDER_FILES, MEASURED_FOLDER, KeptFragment
from preshard.packer_service.job.partition import PARTITION_ROWS, Partition, count_partitions, plan_partition
from preshard.packer_service.job.plan import Planned
from preshard.packer_service.job.runs import (
    RUN_ROWS,
    RUNS,
    RunPart,
    cut_runs,
    merge_fragments,
    most_unused,
    read_facts,
    run_name,
)
from preshard.packer_service.job.segments import (
    PLAN_FOLDER,
    SegmentFacts,
    SegmentPacks,
    read_segment_facts,
    segment_name,
)
from preshard.packer_service.report.mixture import MixtureTotals, check_mixture, mixture_figures
from preshard.packer_service.report.records import Thinned
from preshard.packer_service.runtime.executors import Executor, PlainExecutor, TaskCounts
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.shards.store import Folder
from preshard.schemas.codec import encode_json
from preshard.schemas.config import PackConfig

PLAN_FILE = "plan.json"
"""The last file of a plan to be written."""


class PlanFacts(BaseModel):
    """A whole plan in numbers, from which a later run continues."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    partitions: list[SegmentFacts]
    sources: list[str]
    unused_columns: dict[str, int]
    thinned: Thinned
    measure_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionPlanner:
    """What every step of planning needs.

    Attributes:
        work: the work folder.
        config: the configuration of the job.
        executor: runs the tasks where they are many; a source of one partition is planned in this process.
        progress: hears what is done.
        partition_rows: rows of a partition, and at most so many of a run.
    """

    work: Folder
    config: PackConfig
    executor: Executor
    progress: Progress
    partition_rows: int = PARTITION_ROWS

    @property
    def folder(self) -> Folder:
        return self.work / PLAN_FOLDER

    def kept(self, files: Sequence[SourceFile]) -> Planned | None:
        """The plan that an earlier run has made, if it has."""
        if not self.folder.is_file(PLAN_FILE):
            return None
        return self._planned(PlanFacts.model_validate_json(self.folder.read(PLAN_FILE)), files)

    def merged(self) -> dict[int, int]:
        """The fragments that earlier runs have measured and merged: first and end of each run."""
        names = [name for name in (self.work / RUNS).entries() if name.endswith(".arrow") and not name.startswith(".")]
        return {int(first): int(end) for first, end in (name.removesuffix(".arrow").split("-") for name in names)}

    def merge(self, fragments: Sequence[Fragment], kept: Mapping[int, KeptFragment]) -> None:
        """Sorts what was measured into runs.

        Args:
            fragments: those of the source, in order.
            kept: by number, those that are measured and in no run yet.
        """
        runs = cut_runs([kept[index] for index in sorted(kept)], min(RUN_ROWS, self.partition_rows))
        before = _Lines(self.work, fragments, kept, self.merged())
        items = [[before.part(each) for each in run] for run in runs]
        self._run("merged", partial(merge_fragments, work=self.work.location), items, few=len(items) <= 1)

    def plan(self, files: Sequence[SourceFile], unused: Mapping[str, int], *, unique: bool = True) -> Planned:
        """Plans what the runs hold.

        Args:
            files: those of the source.
            unused: columns that the schemas of tables have and nothing reads, with the number of files that have them.
            unique: whether rows of one id get numbers, and equal ones are rejected.

        Raises:
            ConfigError: the mixture names a source that no row has.
        """
        runs = [run_name(first, end) for first, end in sorted(self.merged().items())]
        facts = [read_facts(self.work / RUNS, name) for name in runs]
        by_source = sum((Counter(each.by_source) for each in facts), Counter[str]())
        sources = sorted({name for each in facts for name in each.by_source})
        check_mixture(self.config, sources)
        n_parts = count_partitions(by_source, self.config, self.partition_rows)
        parts = [Partition(number, n_parts) for number in range(n_parts)]
        done = self._planned_before(parts)
        task = partial(
            plan_partition,
            runs=runs,
            sources=sources,
            labels=[file.label for file in files],
            config=self.config,
            work=self.work.location,
            unique=unique,
        )
        self._run("planned partitions", task, [part for part in parts if part.number not in done], few=len(parts) == 1)
        found = [read_segment_facts(self.folder, segment_name(part.number)) for part in parts]
        if len(parts) > 1:
            self._run("ordered", partial(plan_left, config=self.config, work=self.work.location), [_left_packs(found)])
        plan = PlanFacts(
            partitions=found,
            sources=sources,
            unused_columns=most_unused(facts, unused),
            thinned=Thinned(
                documents=sum(each.thinned for each in facts),
                seconds=max((each.thinned_to for each in facts), default=0.0),
            ),
            measure_seconds=round(sum(each.seconds for each in facts), 3),
        )
        self.folder.write(PLAN_FILE, encode_json(plan))
        for folder in (RUNS, MEASURED_FOLDER):
            (self.work / folder).delete_all()
        return self._planned(plan, files)

    def _planned_before(self, parts: Sequence[Partition]) -> set[int]:
        folders = self.folder.entries()
        found = set[int]()
        for group in range(-(-len(parts) // FOLDER_FILES)):
            if f"{group:06d}" in folders:
                names = (self.folder / f"{group:06d}").entries()
                of_group = range(group * FOLDER_FILES, min((group + 1) * FOLDER_FILES, len(parts)))
                found.update(number for number in of_group if f"{number % FOLDER_FILES:03d}.arrow" in names)
        return found

    def _planned(self, facts: PlanFacts, files: Sequence[SourceFile]) -> Planned:
        nothing = [0.0] * len(facts.sources)
        totals = MixtureTotals(0, nothing, nothing, nothing, nothing)
        for part in facts.partitions:
            totals += MixtureTotals(*part.totals)
        return Planned(
            folder=self.folder,
            partitions=facts.partitions,
            files=files,
            sources=facts.sources,
            unused_columns=facts.unused_columns,
            thinned=facts.thinned,
            mixture=mixture_figures(totals, self.config, facts.sources),
            measure_seconds=facts.measure_seconds,
        )

    def _run(
        self, what: str, function: Callable[[Any], TaskCounts], items: Sequence[Any], *, few: bool = False
    ) -> None:
        """Runs tasks, in this process where they are few: a cluster takes longer to start than they do."""
        amounts: Counter[str] = Counter()
        executor = PlainExecutor() if few else self.executor
        for done, (_, result) in enumerate(executor.run(function, items), start=1):
            amounts.update(result.amounts)
            if not few:
                self.progress.step(what, done, len(items), amounts)


class _Lines:
    """How many lines of its file lie before a fragment, whether they are in runs or in tables of their own."""

    def __init__(
        self,
        work: Folder,
        fragments: Sequence[Fragment],
        kept: Mapping[int, KeptFragment],
        merged: Mapping[int, int],
    ) -> None:
        self.numbers = {file: i for i, file in enumerate(dict.fromkeys(each.file for each in fragments))}
        self.fragments = fragments
        lines = {index: each.n_lines for index, each in kept.items()}
        for first, end in merged.items():
            lines |= dict(enumerate(read_facts(work / RUNS, run_name(first, end)).n_lines, start=first))
        self.before = list[int]()
        of_file = Counter[SourceFile]()
        for index, fragment in enumerate(fragments):
            self.before.append(of_file[fragment.file])
            of_file[fragment.file] += lines.get(index, 0)

    def part(self, kept: KeptFragment) -> RunPart:
        file = self.fragments[kept.number].file
        return RunPart(kept, self.numbers[file], file.label, file.kind == DATASET, self.before[kept.number])


def _left_packs(found: Sequence[SegmentFacts]) -> list[SegmentPacks]:
    """The packs that are left over of each partition."""
    grouped = [sum(part.groups) for part in found]
    return [
        SegmentPacks(segment_name(number), before, before + part.left)
        for number, (part, before) in enumerate(zip(found, grouped, strict=True))
    ]

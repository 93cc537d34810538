"""Steps of planning, from measured fragments to a plan in partitions, in their order; each can be resumed.

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

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from preshard.packer_service.ingest.source.file import DATASET, Fragment, SourceFile
from preshard.packer_service.job.plan import (
    LEFT,
    PLAN_FOLDER,
    ROWS,
    Planned,
    SegmentFacts,
    SegmentPacks,
    read_costs,
    read_segment_facts,
    segment_batches,
    segment_name,
    write_segment,
)
from preshard.packer_service.job.planning.copies import COPIES_FILE, find_copies
from preshard.packer_service.job.planning.measured import FOLDER_FILES, MEASURED_FOLDER, KeptFragment
from preshard.packer_service.job.planning.partition import (
    PARTITION_ROWS,
    Partition,
    RunsHeld,
    count_partitions,
    plan_partition,
)
from preshard.packer_service.job.planning.runs import (
    RUN_ROWS,
    RUNS,
    RunPart,
    UnusedColumns,
    cut_runs,
    merge_fragments,
    read_run_facts,
    run_name,
)
from preshard.packer_service.plan.blend import tokens_by_source
from preshard.packer_service.plan.mixture import MixtureTotals, check_mixture, mixture_figures
from preshard.packer_service.plan.order import step_order
from preshard.packer_service.plan.records import Thinned
from preshard.packer_service.runtime.executors import Executor, PlainExecutor, TaskCounts
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import BATCH_ROWS
from preshard.schemas.config import PackConfig
from preshard.schemas.encode import encode_json
from preshard.schemas.manifest import LayerMasks

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
    filtered: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionPlanner:
    """Inputs of every step of planning.

    Attributes:
        work: the work folder.
        config: the configuration of the job.
        executor: runs the tasks where they are many; a source of one partition is planned in this process.
        progress: hears what is done.
        partition_rows: rows of a partition, and at most so many of a run.
        layers: the model's, where some have a window; plans weigh packs by them.
    """

    work: Folder
    config: PackConfig
    executor: Executor
    progress: Progress
    partition_rows: int = PARTITION_ROWS
    layers: LayerMasks | None = None

    @property
    def folder(self) -> Folder:
        return self.work / PLAN_FOLDER

    def kept(self, files: Sequence[SourceFile]) -> Planned | None:
        """The plan that an earlier run has made, if it has."""
        if not self.folder.is_file(PLAN_FILE):
            return None
        return self._planned(PlanFacts.model_validate_json(self.folder.read(PLAN_FILE)), files)

    def has_runs(self) -> bool:
        """Whether an earlier run began to sort what was measured, so that every fragment is measured."""
        return bool(self._runs())

    def _runs(self) -> list[str]:
        return [name for name in (self.work / RUNS).entries() if not name.startswith(".")]

    def merge(self, fragments: Sequence[Fragment], kept: Mapping[int, KeptFragment]) -> None:
        """Sorts what was measured into runs.

        Args:
            fragments: those of the source, in order.
            kept: by number, all of them.
        """
        parts, files = list[RunPart](), dict[SourceFile, int]()
        lines = Counter[SourceFile]()
        for number, fragment in enumerate(fragments):
            file, found = fragment.file, kept[number]
            numbered = files.setdefault(file, len(files))
            parts.append(RunPart(found, numbered, file.label, file.kind == DATASET, lines[file]))
            lines[file] += found.n_lines
        most = min(RUN_ROWS, self.partition_rows)
        if self.config.duplicates.near is not None:
            most = max(most // 4, 1)  # signatures take three times the memory of all else
        runs, done = cut_runs([part.kept.n_rows for part in parts], most), self._runs()
        items = [parts[run.start : run.stop] for run in runs if run_name(run.start, run.stop) not in done]
        self._run("merged", partial(merge_fragments, work=self.work.location), items, few=len(items) <= 1)

    def plan(self, files: Sequence[SourceFile], unused: Mapping[str, int], *, unique: bool = True) -> Planned:
        """Plans what the runs hold.

        Args:
            files: those of the source.
            unused: columns that the schemas of tables have and nothing reads, with the number of files that have them.
            unique: whether rows of one id get numbers, and equal ones are rejected.

        Raises:
            ConfigError: the mixture or curriculum names a source that no row has, or asks for too much of one.
        """
        runs, by_source, columns = self._runs(), Counter[str](), UnusedColumns(unused)
        n_rejected, thinned, thinned_to, seconds, filtered = 0, 0, 0.0, 0.0, Counter[str]()
        for name in runs:
            run = read_run_facts(self.work / RUNS, name)
            by_source.update(run.by_source)
            columns.add(run)
            filtered.update(run.filtered)
            n_rejected += run.n_rejected
            thinned, thinned_to = thinned + run.thinned, max(thinned_to, run.thinned_to)
            seconds += run.seconds
        sources = sorted(by_source)
        check_mixture(self.config, sources)
        n_parts = count_partitions(by_source, self.config, self.partition_rows)
        parts = [Partition(number, n_parts) for number in range(n_parts)]
        done = self._planned_before(parts)
        measured = RunsHeld(
            runs=runs,
            n_rows=by_source.total() + n_rejected,
            sources=sources,
            labels=[file.label for file in files],
            has_rejects=n_rejected > 0,
            has_copies=self._find_copies(runs, files),
        )
        task = partial(
            plan_partition,
            measured=measured,
            config=self.config,
            work=self.work.location,
            unique=unique,
            layers=self.layers,
        )
        self._run("planned partitions", task, [part for part in parts if part.number not in done], few=len(parts) == 1)
        found = [read_segment_facts(self.folder, segment_name(part.number)) for part in parts]
        if len(parts) > 1:
            self._run("ordered", partial(plan_left, config=self.config, work=self.work.location), [_left_packs(found)])
        plan = PlanFacts(
            partitions=found,
            sources=sources,
            unused_columns=columns.most(),
            thinned=Thinned(documents=thinned, seconds=thinned_to),
            measure_seconds=round(seconds, 3),
            filtered=dict(sorted(filtered.items())),
        )
        self.folder.write(PLAN_FILE, encode_json(plan))
        for folder in (RUNS, MEASURED_FOLDER):
            (self.work / folder).delete_all()
        self.work.delete(COPIES_FILE)
        return self._planned(plan, files)

    def _find_copies(self, runs: Sequence[str], files: Sequence[SourceFile]) -> bool:
        """Compares documents with each other where the configuration asks for it, unless an earlier run has."""
        asked = self.config.duplicates.is_asked
        if asked and not self.work.is_file(COPIES_FILE):
            find = partial(find_copies, files=files, config=self.config, work=self.work.location)
            self._run("compared documents", find, [runs], few=len(runs) <= 1)
        return asked

    def _planned_before(self, parts: Sequence[Partition]) -> set[int]:
        folders = self.folder.entries()
        found = set[int]()
        for group in range(-(-len(parts) // FOLDER_FILES)):
            if f"{group:06d}" in folders:
                names = (self.folder / f"{group:06d}").entries()
                of_group = range(group * FOLDER_FILES, min((group + 1) * FOLDER_FILES, len(parts)))
                found.update(number for number in of_group if f"{number % FOLDER_FILES:03d}.parquet" in names)
        return found

    def _planned(self, facts: PlanFacts, files: Sequence[SourceFile]) -> Planned:
        nothing = [0.0] * len(facts.sources)
        by_phase = [nothing] * len(self.config.curriculum)
        totals = MixtureTotals(0, nothing, nothing, nothing, nothing, by_phase, by_phase)
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
            filtered=facts.filtered,
        )

    def _run(
        self, what: str, function: Callable[[Any], TaskCounts], items: Sequence[Any], *, few: bool = False
    ) -> None:
        """Runs tasks, in this process where they are few: a cluster takes longer to start than they do."""
        amounts: Counter[str] = Counter()
        executor = PlainExecutor() if few else self.executor
        self.progress.doing("planning" if few else f"{what}: 0 of {len(items)}")
        for done, (_, result) in enumerate(executor.run(function, items), start=1):
            amounts.update(result.amounts)
            if not few:
                self.progress.step(what, done, len(items), amounts)


def plan_left(parts: Sequence[SegmentPacks], config: PackConfig, work: str) -> TaskCounts:
    """Runs in a task: puts the packs that fill no group of their partition in step order, as a segment of their own.

    They are fewer than a window for each partition and epoch, so they fit into memory where the partitions do not.

    Args:
        parts: what is left over of each partition.
        config: the configuration of the job.
        work: the work folder.
    """
    folder = Folder(work) / PLAN_FOLDER
    tables, packs, n_packs = [ROWS.empty_table()], [np.zeros(0, np.int64)], 0
    for part in parts:
        for table in segment_batches(folder, part):
            packs.append(table["pack"].to_numpy() + (n_packs - part.first))
            tables.append(table)
        n_packs += part.end - part.first
    costs, vision = (
        np.concatenate([read_costs(folder, part.segment, column)[part.first : part.end] for part in parts])
        for column in ("cost", "vision")
    )
    rows, pack = pa.concat_tables(tables), np.concatenate(packs)
    if n_packs:
        tokens = tokens_by_source(pack, rows["source_number"].to_numpy(), rows["length"].to_numpy(), n_packs)
        order = step_order(costs, window=config.order.window, seed=config.order.seed, vision=vision, tokens=tokens)
        position = np.empty(n_packs, np.int64)
        position[order] = np.arange(n_packs)
        costs, vision, pack = costs[order], vision[order], position[pack]
        by_pack = np.argsort(pack, kind="stable")
        rows = rows.set_column(0, "pack", pa.array(pack)).take(pa.array(by_pack))
    batches = (rows.slice(at, BATCH_ROWS) for at in range(0, len(rows), BATCH_ROWS))
    write_segment(folder, LEFT, batches, costs, vision)
    return TaskCounts(amounts={"packs": n_packs})


def _left_packs(found: Sequence[SegmentFacts]) -> list[SegmentPacks]:
    """The packs that are left over of each partition."""
    grouped = [sum(part.groups) for part in found]
    return [
        SegmentPacks(segment_name(number), before, before + part.left)
        for number, (part, before) in enumerate(zip(found, grouped, strict=True))
    ]

"""Documents of which only sizes are known, planned in partitions as a job plans what it has measured."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from preshard.packer_service.job.partitions import PartitionPlanner
from preshard.packer_service.job.plan import Planned
from preshard.packer_service.job.preview_figures import planned_report
from preshard.packer_service.job.runs import RUNS, hashes_of, run_name, write_run
from preshard.packer_service.plan.cost import causal_area
from preshard.packer_service.report.records import PlanReport
from preshard.packer_service.report.what_if import (
    SampledPack,
    sampled_packs,
    solve_lengths,
    with_patches,
    within_budgets,
)
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.runtime.scratch import give_back_memory
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig

READ_ROWS = 250_000
"""Rows that are read at a time: their wide columns stay below what planning a partition takes."""


class SizeRuns:
    """Sizes of documents that come in parts, sorted into runs in a folder of this machine.

    Attributes:
        n_rows: documents that have come.
    """

    def __init__(self, work: Folder, config: PackConfig) -> None:
        self._work, self._config = work, config
        self._runs, self.n_rows = 0, 0

    def add(self, table: pa.Table) -> None:
        """Adds some documents.

        Args:
            table: ``doc_id`` and ``source`` as strings, ``tokens`` and ``images`` as int64 from 0, without nulls; where
                they are known ``patches``, ``load`` and ``truncated``. ``line`` says which comes first, by default the
                order in which they come.
        """
        if "line" not in table.column_names:
            lines = np.arange(self.n_rows + 1, self.n_rows + len(table) + 1)
            table = table.append_column("line", pa.array(lines))
        run = _run_of_sizes(table, self._config)
        write_run(self._work / RUNS, run_name(self._runs, self._runs + 1), [run])
        self.n_rows, self._runs = self.n_rows + len(table), self._runs + 1
        del table, run
        give_back_memory()  # what a partition takes is not on top of it

    def plan(self, progress: Progress, partition_rows: int, *, unique: bool) -> Planned:
        """Plans what has come.

        Args:
            progress: hears what is done.
            partition_rows: documents that are planned together.
            unique: whether documents of one id get numbers.
        """
        planner = PartitionPlanner(
            work=self._work,
            config=self._config,
            executor=PlainExecutor(),
            progress=progress,
            partition_rows=partition_rows,
        )
        return planner.plan([], {}, unique=unique)


def _run_of_sizes(table: pa.Table, config: PackConfig) -> pa.Table:
    """Documents as they can be packed, in columns of a run; rejected ones among them."""
    kept, lost = within_budgets(with_patches(table, config), config)
    lost = lost.append_column("stage", pa.repeat("plan", len(lost)))
    kept = kept.append_column("area", pa.array(causal_area(kept["tokens"].to_numpy())))
    joined = pa.concat_tables([kept, lost], promote_options="permissive")
    for name, column in {"file": pa.repeat(0, len(joined)), **hashes_of(joined["doc_id"])}.items():
        joined = joined.append_column(name, column)
    return joined


def sized_report(planned: Planned, config: PackConfig, *, dp_sizes: Sequence[int], began: float) -> PlanReport:
    """The figures of a plan of sizes; the packs of the balance have their images spread evenly over documents.

    Args:
        planned: the plan.
        config: the job's configuration.
        dp_sizes: data-parallel sizes to give the straggler ratio for.
        began: when planning began, by :func:`time.perf_counter`.
    """
    seconds = time.perf_counter() - began
    sampled = [_solve(planned, pack, config) for pack in sampled_packs(planned.n_packs)]
    return planned_report(planned, sampled, config, dp_sizes=dp_sizes, seconds=seconds)


def _solve(planned: Planned, pack: int, config: PackConfig) -> SampledPack:
    rows = planned.pack(pack)
    wanted = ("start", "length", "aligned_length", "images")
    starts, lengths, aligned, crops = (rows[name].to_numpy().astype(np.int64) for name in wanted)
    return solve_lengths(pack, starts, lengths, aligned, crops, config)

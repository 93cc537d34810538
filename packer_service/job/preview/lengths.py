"""``preshard plan --lengths FILE``: documents of which only sizes are known, planned in partitions as a job plans."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preshard.packer_service.job.plan import Planned
from preshard.packer_service.job.planning.partition import PARTITION_ROWS
from preshard.packer_service.job.planning.partitions import PartitionPlanner
from preshard.packer_service.job.planning.runs import RUNS, hashes_of, run_name, write_run
from preshard.packer_service.job.preview.export import export_plan
from preshard.packer_service.packs.lengths import (
    SampledPack,
    sampled_packs,
    solve_lengths,
    with_patches,
    within_budgets,
)
from preshard.packer_service.plan.cost import causal_area
from preshard.packer_service.plan.order import check_dp_sizes
from preshard.packer_service.report.fill import PlanTotals
from preshard.packer_service.report.losses import losses_of
from preshard.packer_service.report.planned.what_if import PlanSums, plan_report
from preshard.packer_service.report.records import PlanReport
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.runtime.scratch import give_back_memory, scratch_folder
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import LayerMasks


def planned_report(
    planned: Planned, sampled: Sequence[SampledPack], config: PackConfig, *, dp_sizes: Sequence[int], seconds: float
) -> PlanReport:
    """The figures of a plan.

    Args:
        planned: the plan.
        sampled: some of its packs, solved.
        config: the job's configuration.
        dp_sizes: data-parallel sizes to give the straggler ratio for.
        seconds: time that planning took.
    """
    parts, truncated = planned.partitions, Counter[str]()
    for part in parts:
        truncated.update(part.truncated)
    totals = PlanTotals(
        documents=planned.n_documents,
        tokens=sum(part.tokens for part in parts),
        aligned=sum(part.aligned for part in parts),
        images=sum(part.images for part in parts),
        patches=sum(part.patches for part in parts),
    )
    sums = PlanSums(
        totals=totals,
        cost=planned.costs(),
        seconds=seconds,
        source_documents=planned.n_rows,
        documents=sum(part.n_documents for part in parts),
        rejected=planned.n_rejected,
        numbered=planned.n_numbered,
        lost=losses_of(planned.rejects(), dict(truncated)),
        mixture=planned.mixture,
        limit=planned.limit,
    )
    return plan_report(sums, sampled, config, dp_sizes)


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

    def plan(
        self, progress: Progress, partition_rows: int, *, unique: bool, layers: LayerMasks | None = None
    ) -> Planned:
        """Plans what has come.

        Args:
            progress: hears what is done.
            partition_rows: documents that are planned together.
            unique: whether documents of one id get numbers.
            layers: the model's, where some have a window.
        """
        planner = PartitionPlanner(
            work=self._work,
            config=self._config,
            executor=PlainExecutor(),
            progress=progress,
            partition_rows=partition_rows,
            layers=layers,
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


LENGTHS = ("doc_id", "tokens", "images")


def plan_lengths(
    file: Path,
    config: PackConfig,
    progress: Progress,
    dp_sizes: Sequence[int] = (),
    *,
    export: Path | None = None,
    partition_rows: int = PARTITION_ROWS,
) -> PlanReport:
    """The figures of packing documents of which only lengths are known; images are spread evenly over a document.

    The file is read some hundred thousand rows at a time, and what is sorted waits in a temporary folder.

    Args:
        file: Parquet with ``doc_id``, ``tokens`` and ``images``, and ``source`` where documents have one.
        config: the job's configuration.
        progress: hears what is done.
        dp_sizes: data-parallel sizes to give the straggler ratio for.
        export: file to write the plan to (:func:`export_plan`).
        partition_rows: documents that are planned together.

    Raises:
        ConfigError: the file is missing, is not Parquet or lacks a column, or a length is null or negative.
        PlanError: a data-parallel size does not divide the window.
    """
    check_dp_sizes(dp_sizes, config.order.window)
    with scratch_folder("preshard-plan-") as temporary:
        began, total = time.perf_counter(), _n_rows(file)
        sizes = SizeRuns(Folder(temporary), config)
        for table in read_lengths(file, min(READ_ROWS, partition_rows)):
            sizes.add(table)
            del table  # the last one would stay beside every partition
            progress.step("sorted lengths", sizes.n_rows, total)
        planned = sizes.plan(progress, partition_rows, unique=False)
        if export is not None:
            export_plan(planned, export)
        return sized_report(planned, config, dp_sizes=dp_sizes, began=began)


def _n_rows(file: Path) -> int:
    with _opened(file) as opened:
        return int(opened.metadata.num_rows)


def _opened(file: Path) -> Any:
    try:
        return pq.ParquetFile(file, pre_buffer=False)  # or all of the file is in memory while its parts pass
    except FileNotFoundError:
        raise ConfigError(f"--lengths {file}: no such file") from None
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"--lengths {file}: is not a Parquet file ({' '.join(str(error).split())[:100]})") from None


def read_lengths(file: Path, most_rows: int) -> Iterator[pa.Table]:
    """The lengths of a file in tables of at most so many documents: ``doc_id``, ``tokens``, ``images`` and ``source``.

    Raises:
        ConfigError: the file is missing, is not Parquet or lacks a column, or a length is null or negative.
    """
    with _opened(file) as opened:
        names = opened.schema_arrow.names
        missing = [name for name in LENGTHS if name not in names]
        if missing:
            raise ConfigError(f"--lengths {file}: lacks the column {', '.join(missing)}; it takes {', '.join(LENGTHS)}")
        wanted = [name for name in (*LENGTHS, "source") if name in names]
        try:
            for batch in opened.iter_batches(most_rows, columns=wanted):
                yield _checked(file, pa.Table.from_batches([batch]))
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"--lengths {file}: {' '.join(str(error).split())[:200]}; lengths are integers") from None


def _checked(file: Path, table: pa.Table) -> pa.Table:
    columns = {name: pc.cast(table[name], pa.int64()).combine_chunks() for name in ("tokens", "images")}
    columns["doc_id"] = pc.cast(table["doc_id"], pa.string()).combine_chunks()
    for name in ("tokens", "images"):
        if columns[name].null_count or (len(table) and pc.min(columns[name]).as_py() < 0):
            raise ConfigError(f"--lengths {file}: {name} holds a null or negative value; give integers from 0")
    source = table["source"] if "source" in table.column_names else pa.nulls(len(table), pa.string())
    columns["source"] = pc.fill_null(pc.cast(source, pa.string()), "default")
    return pa.table(columns)

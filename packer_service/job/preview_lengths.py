"""``preshard plan --lengths FILE``: a plan of documents of which only lengths are known, any number of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packer_service.job.arrow_files import narrow
from packer_service.job.partition import PARTITION_ROWS
from packer_service.job.partitions import PartitionPlanner
from packer_service.job.plan import Planned
from packer_service.job.preview_figures import planned_report
from packer_service.job.runs import LOCATED, RUNS, count_run, run_name, write_run
from packer_service.plan.cost import causal_area
from packer_service.plan.order import check_dp_sizes
from packer_service.report.figures import PlanReport
from packer_service.report.what_if import SampledPack, sampled_packs, solve_lengths, with_patches, within_budgets
from packer_service.runtime.executors import PlainExecutor
from packer_service.runtime.progress import Progress
from packer_service.shards.store import Folder
from schemas.config import PackConfig
from schemas.document_ids import hash_ids
from schemas.errors import ConfigError

LENGTHS = ("doc_id", "tokens", "images")

READ_ROWS = 250_000
"""Rows that are read at a time: their wide columns stay below what planning a partition takes."""


def plan_lengths(
    file: Path,
    config: PackConfig,
    progress: Progress,
    dp_sizes: Sequence[int] = (),
    *,
    partition_rows: int = PARTITION_ROWS,
) -> PlanReport:
    """The figures of packing documents of which only lengths are known; images are spread evenly over a document.

    The file is read some hundred thousand rows at a time, and what is sorted waits in a temporary folder.

    Args:
        file: Parquet with ``doc_id``, ``tokens`` and ``images``, and ``source`` where documents have one.
        config: the job's configuration.
        progress: hears what is done.
        dp_sizes: data-parallel sizes to give the straggler ratio for.
        partition_rows: documents that are planned together.

    Raises:
        ConfigError: the file is missing, is not Parquet or lacks a column, or a length is null or negative.
        PlanError: a data-parallel size does not divide the window.
    """
    check_dp_sizes(dp_sizes, config.order.window)
    with tempfile.TemporaryDirectory(prefix="preshard-plan-") as temporary:
        work = Folder(temporary)
        began, n_rows, total = time.perf_counter(), 0, _n_rows(file)
        for number, table in enumerate(read_lengths(file, min(READ_ROWS, partition_rows))):
            run = run_of_lengths(table, n_rows, config)
            write_run(work / RUNS, run_name(number, number + 1), run, count_run(run))
            n_rows += len(table)
            del table, run
            pa.default_memory_pool().release_unused()  # what a partition takes is not on top of it
            progress.step("sorted lengths", n_rows, total)
        planner = PartitionPlanner(
            work=work, config=config, executor=PlainExecutor(), progress=progress, partition_rows=partition_rows
        )
        planned = planner.plan([], {}, unique=False)
        seconds = time.perf_counter() - began
        sampled = [_solve(planned, pack, config) for pack in sampled_packs(planned.n_packs)]
        return planned_report(planned, sampled, config, dp_sizes=dp_sizes, seconds=seconds)


def run_of_lengths(table: pa.Table, rows_before: int, config: PackConfig) -> pa.Table:
    """Documents of which lengths are known as they can be packed, in columns of a run; rejected ones among them.

    Args:
        table: as :func:`read_lengths` gives it.
        rows_before: rows of the file before these.
        config: the job's configuration.
    """
    line = pa.array(np.arange(rows_before + 1, rows_before + len(table) + 1))
    table = table.append_column("id_hash", pa.array(hash_ids(table["doc_id"]))).append_column("line", line)
    kept, lost = within_budgets(with_patches(table, config), config)
    lost = lost.append_column("stage", pa.repeat("plan", len(lost)))
    kept = kept.append_column("area", pa.array(causal_area(kept["tokens"].to_numpy())))
    joined = pa.concat_tables([kept, lost], promote_options="permissive")
    columns = {name: narrow(joined[name]) for name in LOCATED.names if name in joined.column_names}
    nothing = {name: pa.nulls(len(joined)) for name in ("stage", "code", "message") if name not in columns}
    source = joined["source"].combine_chunks().dictionary_encode()
    return pa.table({**columns, **nothing, "file": pa.repeat(pa.scalar(0, pa.int8()), len(joined)), "source": source})


def _solve(planned: Planned, pack: int, config: PackConfig) -> SampledPack:
    rows = planned.pack(pack)
    wanted = ("start", "length", "aligned_length", "images")
    starts, lengths, aligned, crops = (rows[name].to_numpy().astype(np.int64) for name in wanted)
    return solve_lengths(pack, starts, lengths, aligned, crops, config)


def _n_rows(file: Path) -> int:
    with _opened(file) as opened:
        return int(opened.metadata.num_rows)


def _opened(file: Path) -> Any:
    try:
        return pq.ParquetFile(file)
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

"""``preshard plan --lengths FILE``: a plan of documents of which only lengths are known, any number of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preshard.packer_service.job.partition import PARTITION_ROWS
from preshard.packer_service.job.preview_runs import READ_ROWS, SizeRuns, sized_report
from preshard.packer_service.plan.order import check_dp_sizes
from preshard.packer_service.report.records import PlanReport
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.runtime.scratch import scratch_folder
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError

LENGTHS = ("doc_id", "tokens", "images")


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
    with scratch_folder("preshard-plan-") as temporary:
        began, total = time.perf_counter(), _n_rows(file)
        sizes = SizeRuns(Folder(temporary), config)
        for table in read_lengths(file, min(READ_ROWS, partition_rows)):
            sizes.add(table)
            progress.step("sorted lengths", sizes.n_rows, total)
        planned = sizes.plan(progress, partition_rows, unique=False)
        return sized_report(planned, config, dp_sizes=dp_sizes, began=began)


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

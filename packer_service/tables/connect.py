"""Connections to DuckDB, the engine for tables: within limits, without files or extensions that nobody asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

MEMORY_MIB = 512
"""Memory that queries may take before they spill to the disk."""

MOST_THREADS = 4
"""Threads of a connection on a machine that has more: each takes buffers of its own."""

_kept: list[duckdb.DuckDBPyConnection] = []


def keep_database() -> None:
    """Makes connections of this process that need no scratch folder share one database, which takes 20 ms to open.

    DuckDB's threads do not survive a fork, so only a process that never forks may call it.
    """
    if not _kept:
        _kept.append(_open(None, MEMORY_MIB, None))


class PassingRows:
    """Rows that pass through a query once, part by part, and are not kept.

    Args:
        schema: their columns.
        parts: reads them. What it raises is what the block of :func:`connect` raises, not what DuckDB makes of it.
    """

    def __init__(self, schema: pa.Schema, parts: Iterable[pa.RecordBatch]) -> None:
        self.raised: Exception | None = None
        self.reader = pa.RecordBatchReader.from_batches(schema, self._noting(parts))

    def _noting(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from parts
        except Exception as error:
            self.raised = error
            raise


@contextmanager
def connect(
    tables: Mapping[str, Any] | None = None,
    *,
    database: duckdb.DuckDBPyConnection | None = None,
    scratch: str | None = None,
    memory_mib: int = MEMORY_MIB,
    threads: int | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a database in memory, which is gone when the block ends unless it is kept.

    Rows have no order unless a query says so, so a query whose rows become bytes needs a total ``ORDER BY``. Sums of
    floating-point numbers differ in the last bit between runs: sum integers, or decimals.

    Args:
        tables: what queries name: Arrow tables, readers or datasets, or rows that pass.
        database: a connection whose database, with its limits, serves this one as well; opening another takes 15 ms.
        scratch: folder that queries may spill into; without one a query that needs more memory fails.
        memory_mib: memory that queries may take.
        threads: threads that queries run in; by default one per CPU, at most :data:`MOST_THREADS`.

    Raises:
        duckdb.OutOfMemoryException: a query in the block needs more memory and may not spill.
    """
    if database is None and _kept and scratch is None and memory_mib == MEMORY_MIB and threads is None:
        database = _kept[0]
    with _open(scratch, memory_mib, threads) if database is None else database.cursor() as connection:
        passing = [table for table in (tables or {}).values() if isinstance(table, PassingRows)]
        for name, table in (tables or {}).items():
            connection.register(name, table.reader if isinstance(table, PassingRows) else table)
        try:
            yield connection
        except (duckdb.Error, pa.ArrowException):
            for raised in (rows.raised for rows in passing):
                if raised is not None:
                    raise raised from None
            raise


def _open(scratch: str | None, memory_mib: int, threads: int | None) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_mib}MiB",
        "threads": threads or min(os.cpu_count() or 1, MOST_THREADS),
        "temp_directory": scratch or "",
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET enable_progress_bar = false")  # it prints to standard output in some processes
    return connection

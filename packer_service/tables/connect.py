"""Connections to DuckDB, the engine for tables: within limits, without files or extensions that nobody asked for."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from preshard.schemas.dataset.passing_rows import PassingRows

MEMORY_MIB = 512
"""Memory that queries may take before they spill to the disk."""

MOST_THREADS = 4
"""Threads of a connection on a machine that has more: each takes buffers of its own."""


@contextmanager
def connect(
    tables: Mapping[str, Any] | None = None,
    *,
    database: duckdb.DuckDBPyConnection | None = None,
    scratch: str | None = None,
    memory_mib: int = MEMORY_MIB,
    threads: int | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a database in memory.

    Opening a database takes 20 ms, so those that may not spill share the one of their process, which has one thread:
    none is lost when the process forks. What a query names is seen by its own connection alone.

    Rows have no order unless a query says so, so a query whose rows become bytes needs a total ``ORDER BY``. Sums of
    floating-point numbers differ in the last bit between runs: sum integers, or decimals.

    Args:
        tables: what queries name: Arrow tables, readers or datasets, or rows that pass.
        database: a connection whose database, with its limits, serves this one as well.
        scratch: folder that queries may spill into, by a database of their own that is gone when the block ends;
            without one a query that needs more memory fails.
        memory_mib: memory that queries with a scratch folder may take; others have :data:`MEMORY_MIB`.
        threads: threads that queries with a scratch folder run in; by default one per CPU, at most
            :data:`MOST_THREADS`.

    Raises:
        duckdb.OutOfMemoryException: a query in the block needs more memory and may not spill.
    """
    if database is None and scratch is None:
        database = database_of_process()
    with open_database(scratch, memory_mib, threads) if database is None else database.cursor() as connection:
        connection.execute("SET enable_progress_bar = false")  # it prints to standard output in some processes
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


def database_of_process(*settings: str) -> duckdb.DuckDBPyConnection:
    """The database of this process that has these settings, opened once.

    Args:
        settings: statements that are executed first. Its cursors have what is set globally, and nothing else.
    """
    return _kept(os.getpid(), settings)


@cache
def _kept(_process: int, settings: tuple[str, ...]) -> duckdb.DuckDBPyConnection:
    """Kept by the process, since a forked one cannot use that of its parent."""
    database = open_database(threads=1)
    for statement in settings:
        database.execute(statement)
    atexit.register(_kept.cache_clear)  # what is left of it when Python ends would be named on standard error
    return database


def open_database(
    scratch: str | None = None, memory_mib: int = MEMORY_MIB, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A database of its own. With one thread it starts none, so its process may fork."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_mib}MiB",
        "threads": threads or min(os.cpu_count() or 1, MOST_THREADS),
        "async_threads": 0,  # for remote files, which no query reads
        "temp_directory": scratch or "",
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    return duckdb.connect(":memory:", config=config)

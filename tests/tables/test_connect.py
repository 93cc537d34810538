"""Connections to DuckDB."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from preshard.packer_service.tables.connect import connect, open_database

NUMBERS = pa.table({"number": np.arange(3_000_000)[::-1]})
COUNTED = "SELECT count(DISTINCT number::VARCHAR) FROM numbers"


def test_counts_what_does_not_fit_into_memory_in_the_scratch_folder_alone(tmp_path: Path) -> None:
    """Regression: a query that needs more memory than it may have fails, or spills into the working folder."""
    with connect({"numbers": NUMBERS}, scratch=str(tmp_path), memory_mib=32, threads=2) as connection:
        assert connection.execute(COUNTED).fetchone() == (3_000_000,)


def test_fails_without_a_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a service that may write nothing spills beside the dataset."""
    monkeypatch.chdir(tmp_path)
    with (
        open_database(memory_mib=32) as database,
        connect({"numbers": NUMBERS}, database=database) as connection,
        pytest.raises(duckdb.OutOfMemoryException),
    ):
        connection.execute(COUNTED).fetchone()
    assert not list(tmp_path.iterdir())


def test_sees_no_variable_of_python() -> None:
    """Regression: a table that is missing is taken from whatever variable has its name."""
    absent = NUMBERS
    assert len(absent)
    with connect() as connection, pytest.raises(duckdb.CatalogException):
        connection.execute("SELECT count(*) FROM absent").fetchone()


def test_connections_of_a_process_share_a_database_and_no_table() -> None:
    """Fails when each query opens a database, which takes longer than most queries, or sees tables of another."""
    with connect({"numbers": NUMBERS}) as first, connect() as second:
        assert first.execute("SELECT count(*) FROM numbers").fetchone() == (len(NUMBERS),)
        assert _database(first) == _database(second)
        with pytest.raises(duckdb.CatalogException):
            second.execute("SELECT count(*) FROM numbers")


@pytest.mark.process
def test_a_forked_process_has_a_database_of_its_own() -> None:
    """Fails when the database of a process has threads, or is asked by a process that was forked and has none."""
    threads = len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else 0
    with connect() as connection:
        own = _database(connection)
        if sys.platform == "linux":
            assert len(list(Path("/proc/self/task").iterdir())) == threads
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(_database).get(timeout=60) != own
        assert connection.execute("SELECT 1").fetchone() == (1,)


def _database(connection: duckdb.DuckDBPyConnection | None = None) -> str:
    """A mark of a database, which all its connections see."""
    with connect(database=connection) as another:
        another.execute("CREATE TABLE IF NOT EXISTS memory.main.mark AS SELECT uuid() AS id")
        [mark] = another.execute("SELECT id FROM memory.main.mark").fetchone() or ()
    return str(mark)


@pytest.mark.process
def test_a_process_ends_without_a_word_about_it() -> None:
    """Regression: a database that is left when Python ends has pages of names on standard error."""
    program = "from preshard.packer_service.tables.connect import connect\nwith connect() as c: c.execute('SELECT 1')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")

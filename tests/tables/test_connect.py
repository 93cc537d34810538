"""Connections to DuckDB."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from preshard.packer_service.tables.connect import connect

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
        connect({"numbers": NUMBERS}, memory_mib=32, threads=2) as connection,
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

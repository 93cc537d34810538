"""Rows in Parquet files, read again by ranges."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pyarrow as pa

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import KeyRange, read_rows, sort_parts, write_rows


def test_a_file_that_was_read_keeps_no_footer_in_memory(tmp_path: Path) -> None:
    """Fails when the footers of all runs that a partition reads stay until the garbage collector comes by."""
    folder, rows = Folder(str(tmp_path)), pa.table({"key": np.arange(100_000), "value": np.arange(100_000)})
    for name in ("a", "b", "c"):
        write_rows(folder, name, rows.to_batches(), rows.schema, by="key")
    gc.collect()
    gc.disable()
    try:
        before = _footers()
        found = [batch["key"] for batch in read_rows(folder, ["a", "b", "c"], KeyRange("key", 20_000, 40_000), ["key"])]
        assert [sum(map(len, found)), _footers()] == [60_000, before]
    finally:
        gc.enable()


def _footers() -> int:
    return sum(type(each).__name__ == "FileMetaData" for each in gc.get_objects())


def test_parts_are_sorted_and_given_up() -> None:
    """Fails when equal keys change places by part, a narrow or missing column loses values, or parts stay in memory."""
    parts = [
        pa.table({"key": ["b", "a", "b"], "piece": pa.array([1, 0, 0], pa.int8()), "size": pa.nulls(3)}),
        pa.table({"key": ["a", "c"], "piece": pa.array([300, 2], pa.int16()), "size": [7, 8]}),
    ]
    found = sort_parts(parts, ("key", "piece"))
    assert found.to_pydict() == {
        "key": ["a", "a", "b", "b", "c"],
        "piece": [0, 300, 0, 1, 2],
        "size": [None, 7, None, None, 8],
    }
    assert not parts

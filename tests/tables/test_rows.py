"""Rows in Parquet files, read again by ranges."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.job.preview.lengths import read_lengths
from preshard.packer_service.report.tables import table_parts
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import KeyRange, read_rows, sort_parts, write_rows
from preshard.packer_service.verify.scan import TableScan
from preshard.packer_service.verify.verdict import Faults
from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import TableEntry
from preshard.schemas.tables import PACKS


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


@pytest.mark.parametrize("kind", ["lengths", "table", "verified", "run"])
def test_what_passes_in_parts_is_never_in_memory_as_a_whole(tmp_path: Path, kind: str) -> None:
    """Fails when all row groups of a file are fetched before its first rows pass."""
    n, folder = 200_000, Folder(str(tmp_path))
    numbers = np.random.default_rng(0).integers(0, 2**10, n)
    columns: dict[str, Any] = {each.name: pa.array(numbers).cast(each.type) for each in PACKS}
    if kind == "lengths":
        columns = {"doc_id": pa.array(np.arange(n)).cast(pa.string()), "tokens": numbers, "images": numbers}
    rows = pa.table(columns, schema=None if kind == "lengths" else PACKS)
    if kind == "run":
        write_rows(folder, "packs.parquet", rows.to_batches(), PACKS, by="pack_id")
    else:
        settings = {"row_group_size": n // 50, "use_dictionary": False, "compression": "none"}
        pq.write_table(rows, tmp_path / "packs.parquet", **settings)
    size = sum(rows[name].nbytes for name in ("tokens", "images") if kind == "lengths") or rows.nbytes
    del rows, columns
    entry = TableEntry(name="packs.parquet", bytes=0, sha256="0" * 64, rows=n)
    reads: dict[str, Callable[[], Iterator[Any]]] = {
        "lengths": lambda: read_lengths(tmp_path / "packs.parquet", n // 50),
        "table": lambda: table_parts(folder, "packs.parquet", PACKS.names, n // 50),
        "verified": lambda: TableScan(folder, entry, PackConfig()).parts(Faults()),
        "run": lambda: read_rows(folder, ["packs.parquet"], KeyRange("pack_id", 0, 2**62)),
    }
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    for part in reads[kind]():
        most, seen = max(most, pa.total_allocated_bytes() - before), seen + part.num_rows
    assert seen == n
    assert most < size / 2

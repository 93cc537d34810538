"""A table of a dataset that is a source: the rows of some packs, and nothing else of it in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.ingest.packed import dataset
from preshard.packer_service.ingest.packed.dataset import StoredTable
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import TableEntry
from preshard.schemas.tables import TABLES

PACKS = [0, 0, 0, 1, 1, 1, 1, 1, 2, 4, 4]
"""The pack of each row, in row groups of four rows. Pack 1 lies in two of them, pack 3 has lost all of its rows."""

SCHEMA = TABLES["documents.parquet"]
MANIFEST = cast("Any", None)


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the dataset one whose documents keep no columns."""
    monkeypatch.setattr(dataset, "stored_config", lambda _: PackConfig())


def stored(folder: Path, packs: Sequence[int] = PACKS) -> StoredTable:
    values: dict[str, list[Any]] = {"doc_id": [f"d{row}" for row in range(len(packs))], "pack_id": list(packs)}
    given = [values.get(field.name, ["a" if field.type == pa.string() else 1] * len(packs)) for field in SCHEMA]
    table = pa.table([pa.array(each, field.type) for each, field in zip(given, SCHEMA, strict=True)], schema=SCHEMA)
    pq.write_table(table, folder / "documents.parquet", row_group_size=4)
    content = (folder / "documents.parquet").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    entry = TableEntry(name="documents.parquet", bytes=len(content), sha256=digest, rows=len(packs))
    return StoredTable(str(folder), "old", entry, ("doc_id", "pack_id"), MANIFEST)


def test_the_rows_of_packs_are_read_from_their_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when rows at the edge of a row group are lost, or all of a table of a hundred million rows is read."""
    read, usual = list[int](), pq.ParquetFile.read_row_groups

    def counted(file: pq.ParquetFile, groups: Sequence[int], **named: Any) -> pa.Table:
        read.extend(groups)
        return usual(file, groups, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    table = stored(tmp_path)
    wanted = {(0, 1): [0], (1, 2): [0, 1], (2, 5): [2], (4, 5): [], (3, 4): [], (0, 5): [0, 1, 2]}
    for (first, end), groups in wanted.items():
        read.clear()
        found = table.rows_of(first, end)
        assert found["pack_id"].to_pylist() == [pack for pack in PACKS if first <= pack < end]
        assert found["doc_id"].to_pylist() == [f"d{row}" for row, pack in enumerate(PACKS) if first <= pack < end]
        assert found.column_names == ["doc_id", "pack_id"]
        assert read == groups, (first, end)


def test_a_table_without_rows_has_none(tmp_path: Path) -> None:
    """Fails when a dataset all of whose documents were rejected cannot be a source."""
    table = stored(tmp_path, [])
    assert table.rows_of(0, 1).to_pylist() == []
    assert table.read().to_pylist() == []


def test_a_table_is_what_the_manifest_says_or_refused(tmp_path: Path) -> None:
    """Fails when rows of a table that was changed or taken away are packed."""
    stored(tmp_path)
    entry = TableEntry(name="documents.parquet", bytes=1, sha256="0" * 64, rows=11)
    with pytest.raises(ConfigError, match=r"^SOURCE old: documents.parquet: has [\d,]+ bytes; at most 1 "):
        StoredTable(str(tmp_path), "old", entry, ("doc_id",), MANIFEST)
    entry = TableEntry(name="documents.parquet", bytes=1 << 20, sha256="0" * 64, rows=11)
    with pytest.raises(ConfigError, match=r"^SOURCE old: documents.parquet is damaged"):
        StoredTable(str(tmp_path), "old", entry, ("doc_id",), MANIFEST)
    (tmp_path / "documents.parquet").unlink()
    with pytest.raises(ConfigError, match=r"^SOURCE old: documents.parquet is missing; put the file back$"):
        StoredTable(str(tmp_path), "old", entry, ("doc_id",), MANIFEST)

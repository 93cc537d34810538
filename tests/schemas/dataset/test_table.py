"""A table is what its declaration says, and claims no more than its bytes can hold."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.schemas.dataset.table import Column, number, table_errors, text
from preshard.schemas.dataset.table_file import TableFile, lists
from preshard.schemas.errors import AnnotationsInvalid, TableInvalid
from preshard.schemas.tables import DECLARED, DOCUMENTS, PACKS, TABLES, open_table
from tests.support.hostile_bytes import claim_of_rows

COLUMNS = (number("id", "a row"), text("name", "its name"), text("kind", "its kind", ("a", "b")))
LISTS = (number("degree", "ranks"), *lists("of each", "loads", length="degree", nulls="rows without"))


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def rows(n: int, **others: Any) -> pa.Table:
    columns = {"id": np.arange(n), "name": [str(i) for i in range(n)], "kind": ["a"] * n, **others}
    return pa.table(
        {
            name: pa.array(values, column.type)
            for column in COLUMNS
            for name, values in columns.items()
            if name == column.name
        }
    )


def read(data: bytes, columns: tuple[Column, ...] = COLUMNS, **options: Any) -> pa.Table:
    return TableFile(pa.BufferReader(data), "t.parquet", columns, **options).read()


def test_a_sound_table_is_read_as_pyarrow_reads_it() -> None:
    """Fails when a table loses rows, or what a dictionary holds becomes another type."""
    for table, options in ((rows(0), {}), (rows(1000), {"row_group_size": 7}), (rows(1000), {"use_dictionary": False})):
        assert read(written(table, **options), rows=len(table)).equals(table)
    parts = TableFile(pa.BufferReader(written(rows(100), row_group_size=30)), "t.parquet", COLUMNS).parts(
        20, groups=[1, 3], columns=["id"]
    )
    assert [part["id"].to_pylist() for part in parts] == [[*range(30, 50)], [*range(50, 60), *range(90, 100)]]


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "not Parquet": (lambda: b"not a table" * 99, "cannot be read as Parquet"),
    "cut": (lambda: written(rows(99))[:-9], "cannot be read as Parquet"),
    "nothing": (lambda: b"", "cannot be read as Parquet"),
    "another column": (lambda: written(rows(9).rename_columns(["id", "nom", "kind"])), "has the columns"),
    "another type": (lambda: written(rows(9).set_column(0, "id", pa.array([1.5] * 9))), "has the columns"),
    "a column more": (lambda: written(rows(9).append_column("x", pa.array([1] * 9))), "has the columns"),
    "many columns": (
        lambda: written(pa.table({str(number): [1] for number in range(3000)})), "has 3,000 columns; at most 256",
    ),
    "a null": (lambda: written(rows(9, id=[None, *range(8)])), "id has nulls"),
    "below 0": (lambda: written(rows(9, id=[-5] * 9)), "id is -5; it must be from 0"),
    "no legal value": (lambda: written(rows(9, kind=["c"] * 9)), "kind is 'c'; legal are a, b"),
    "no UTF-8": (
        lambda: written(rows(9).set_column(1, "name", pa.array([b"\xff\xfe"] * 9).view(pa.string()))), "Invalid UTF8",
    ),
    "billions of rows": (
        lambda: claim_of_rows(written(rows(12_345)), 12_345, 4_000_000_000), "claims 4,000,000,000 rows in",
    ),
    "many row groups": (
        lambda: written(rows(3000), row_group_size=1), "has 3,000 row groups of 3,000 rows; legal are 1024",
    ),
    "a dictionary of gigabytes": (
        lambda: written(
            rows(20_000).set_column(1, "name", pa.DictionaryArray.from_arrays(pa.array([0] * 20_000), ["x" * 100_000])),
            store_schema=False,
        ),
        "name has a text of 100,000 bytes among 20,000",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_such_table_is_refused_in_one_line(make: Callable[[], bytes], said: str) -> None:
    """Fails when bytes of a stranger end in an error of Arrow's, in gigabytes, or in numbers of no meaning."""
    before = pa.total_allocated_bytes()
    with pytest.raises(TableInvalid, match=said) as raised:
        read(make())
    assert str(raised.value).startswith("t.parquet: ")
    assert pa.total_allocated_bytes() - before < 64 << 20


@pytest.mark.parametrize(
    ("loads", "said"),
    [
        ([[1, 2], None], None),
        ([[1, 2], [3]], "loads has a list that is not as long as degree says"),
        ([[1, None], [3, 4]], "loads has a list with nulls in it"),
        ([[1, 2], [3, -4]], "loads is -4; it must be from 0"),
    ],
)
def test_lists_are_as_long_as_another_column_says(loads: list[list[int] | None], said: str | None) -> None:
    """Fails when a list of ranks that is short, or lacks a number, is read: where the length is in a column beside it,
    and where the caller knows it.
    """
    table = pa.table({"degree": [2, 2], "loads": pa.array(loads, pa.list_(pa.int64()))})
    for columns, known in ((["degree", "loads"], {}), (["loads"], {"degree": 2})):
        file = TableFile(pa.BufferReader(written(table)), "t.parquet", LISTS)
        if said is None:
            assert file.read(columns=columns, known=known)["loads"].to_pylist() == loads
            continue
        with pytest.raises(TableInvalid, match=said):
            file.read(columns=columns, known=known)


def test_rows_are_those_of_the_manifest() -> None:
    """Fails when a table is read that has more rows than packs were written."""
    with pytest.raises(TableInvalid, match="has 9 rows; the manifest says 8"):
        read(written(rows(9)), rows=8)


def test_errors_are_the_tables() -> None:
    """Fails when memory that is lacking, or a disk that fails, is reported without the file; or a store's error is
    taken for damage.
    """
    with (
        pytest.raises(AnnotationsInvalid, match=r"^a: takes more memory to read than there is$") as raised,
        table_errors("a", AnnotationsInvalid),
    ):
        raise MemoryError
    assert isinstance(raised.value.__cause__, MemoryError)
    with pytest.raises(OSError, match=r"a cannot be read \(disk is broken\)") as failed, table_errors("a"):
        raise OSError(errno.EIO, "disk is broken", "/somewhere/else")
    assert failed.value.errno == errno.EIO


def test_every_table_is_declared_once() -> None:
    """Fails when a table has columns that no check knows, or kept ones of any type are taken."""
    assert {name: [column.name for column in columns] for name, columns in DECLARED.items()} == {
        name: schema.names for name, schema in TABLES.items()
    }
    assert TABLES["packs.parquet"] is PACKS or TABLES["packs.parquet"].equals(PACKS)
    kept = pa.schema([*DOCUMENTS, ("quality", pa.float64())]).empty_table()
    assert open_table(pa.BufferReader(written(kept)), "documents.parquet").schema.names[-1] == "quality"
    odd = pa.schema([*DOCUMENTS, ("quality", pa.date32())]).empty_table()
    for keep, table in ((None, odd), ((), kept), ((("quality", "int"),), kept)):
        with pytest.raises(TableInvalid, match="has the columns"):
            open_table(pa.BufferReader(written(table)), "documents.parquet", keep_columns=keep)


@pytest.mark.parametrize("at_end", [False, True])
def test_a_large_table_of_holes_is_refused_before_it_is_hashed(tmp_path: Path, at_end: bool) -> None:
    """Fails when a sparse file of a terabyte, with or without a footer at its end, is read to tell its hash."""
    data, path = written(rows(9)), tmp_path / "t.parquet"
    footer = int.from_bytes(data[-8:-4], "little") + 8
    with path.open("wb") as file:
        file.write(data[:-footer])
        file.truncate(1 << 40)
        if at_end:
            file.seek(0, 2)
            file.write(data[-footer:])
    said = "of its 1,099,5.* bytes outside of its columns" if at_end else "cannot be read as Parquet"
    with pytest.raises(TableInvalid, match=said), pa.OSFile(str(path)) as opened:
        TableFile(opened, "t.parquet", COLUMNS, rows=9)

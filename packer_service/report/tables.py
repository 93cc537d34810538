"""Tables of a dataset, opened for parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from preshard.packer_service.report.measures import StoredMeasures
from preshard.packer_service.shards.store import Folder
from preshard.schemas import tables
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import MeasureOrder
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import TableInvalid, TableMissing
from preshard.schemas.tables import TABLES

PART_ROWS = 65_536
"""Rows of a part: a row group, as the writer makes them."""


@contextmanager
def open_table(folder: Folder, name: str, rows: int | None = None) -> Iterator[TableFile]:
    """A table, opened for parts of it.

    Args:
        folder: the dataset.
        name: the table's.
        rows: that the manifest gives; None where it is not written yet.

    Raises:
        TableInvalid: it is not Parquet, has other columns or rows, or illegal values; also while it is read.
        TableMissing: it is not there.
    """
    try:
        with folder.open(name) as source:
            yield tables.open_table(source, name, rows=rows)
    except FileNotFoundError:
        raise TableMissing(name, "is not there") from None


@contextmanager
def open_measures(folder: Folder, config: PackConfig, n_packs: int) -> Iterator[StoredMeasures]:
    """``measures.parquet``, of which single columns are read by group and pack.

    Raises:
        TableInvalid: it is not Parquet, or has other columns or row groups; also while it is read in the block.
    """
    name, order = "measures.parquet", MeasureOrder.of(config, n_packs)
    with open_table(folder, name, order.n_rows) as file:
        check_row_groups(file.metadata, order)
        yield StoredMeasures(config=config, order=order, file=file)


def check_row_groups(metadata: Any, order: MeasureOrder) -> None:
    """
    Raises:
        TableInvalid: the row groups of ``measures.parquet`` are not one for each group of a block of packs.
    """
    if metadata.num_rows != order.n_rows:
        raise TableInvalid("measures.parquet", f"has {metadata.num_rows} rows, not {order.n_rows}")
    found = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if found != order.row_groups():
        each = f"{len(order.groups)} for each of {order.n_packs} packs"
        raise TableInvalid("measures.parquet", f"has {sum(found)} rows in {len(found)} row groups, not {each} in order")


def numbers_of(column: pa.ChunkedArray) -> np.ndarray:
    """A column of numbers without nulls as an array, without a copy where it is in one chunk.

    Arrow's own conversion imports pandas, which takes 0.25 s.
    """
    return np.from_dlpack(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


def table_parts(folder: Folder, name: str, columns: Sequence[str], rows: int = PART_ROWS) -> Iterator[pa.Table]:
    """Some columns of a table, at most so many rows at a time.

    Raises:
        TableInvalid: it is not Parquet, or has other columns.
    """
    with open_table(folder, name) as file:
        for batch in file.parts(rows, columns=columns):
            yield pa.Table.from_batches([batch])


def read_numbers(folder: Folder, name: str, *columns: str) -> list[np.ndarray]:
    """Columns of numbers: beside them nothing of the table is in memory.

    Raises:
        TableInvalid: it is not Parquet, or has other columns.
    """
    empty = [np.zeros(0, TABLES[name].field(column).type.to_pandas_dtype()) for column in columns]
    parts = [[numbers_of(part[column]) for column in columns] for part in table_parts(folder, name, columns)]
    return [np.concatenate(column) for column in zip(empty, *parts, strict=True)]


def read_packs(folder: Folder, columns: Sequence[str], n_packs: int) -> pa.Table:
    """Some columns of ``packs.parquet``, which has so many rows.

    Raises:
        TableInvalid: it is not Parquet, or has other columns.
    """
    with open_table(folder, "packs.parquet", n_packs) as file:
        return file.read(columns=columns)

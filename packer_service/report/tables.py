"""Tables of a dataset, opened for parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from preshard.packer_service.report.loads import numbers_of
from preshard.packer_service.shards.store import Folder
from preshard.schemas.balance import BalanceOrder
from preshard.schemas.errors import TableInvalid
from preshard.schemas.tables import TABLES

PART_ROWS = 65_536
"""Rows of a part: a row group, as the writer makes them."""


@contextmanager
def open_table(folder: Folder, name: str) -> Iterator[pq.ParquetFile]:
    """A table, opened for parts of it.

    Raises:
        TableInvalid: it is not Parquet, or has other columns; also while it is read in the block.
    """
    try:
        with folder.open(name) as source:
            file = pq.ParquetFile(source)
            if not file.schema_arrow.equals(TABLES[name]):
                raise TableInvalid(name, f"has the columns {file.schema_arrow.names}, not {TABLES[name].names}")
            yield file
    except pa.ArrowException as error:
        raise TableInvalid(name, f"cannot be read ({' '.join(str(error).split())[:200]})") from None


@contextmanager
def open_balance(folder: Folder, order: BalanceOrder) -> Iterator[pq.ParquetFile]:
    """``balance.parquet``, of which loads are read by group and pack.

    Raises:
        TableInvalid: it is not Parquet, or has other columns or another number of rows.
    """
    name = "balance.parquet"
    with open_table(folder, name) as file:
        if file.metadata.num_rows != order.n_packs * order.rows_per_pack:
            raise TableInvalid(
                name, f"has {file.metadata.num_rows} rows, not {order.rows_per_pack} for each of {order.n_packs} packs"
            )
        yield file


def table_parts(folder: Folder, name: str, columns: Sequence[str], rows: int = PART_ROWS) -> Iterator[pa.Table]:
    """Some columns of a table, at most so many rows at a time.

    Raises:
        TableInvalid: it is not Parquet, or has other columns.
    """
    with open_table(folder, name) as file:
        for batch in file.iter_batches(rows, columns=list(columns)):
            batch.validate(full=True)
            for column in columns:
                if nulls := batch.column(column).null_count:
                    raise TableInvalid(name, f"{column} has {nulls} nulls")
            yield pa.Table.from_batches([batch])


def read_numbers(folder: Folder, name: str, column: str) -> np.ndarray:
    """A column of numbers: beside it nothing of the table is in memory.

    Raises:
        TableInvalid: it is not Parquet, or has other columns.
    """
    parts = [numbers_of(part[column]) for part in table_parts(folder, name, [column])]
    return np.concatenate([np.zeros(0, TABLES[name].field(column).type.to_pandas_dtype()), *parts])


def read_packs(folder: Folder, columns: Sequence[str]) -> pa.Table:
    """Some columns of ``packs.parquet``.

    Raises:
        TableInvalid: it is not Parquet, or has other columns.
    """
    return _read(folder, "packs.parquet", columns)


def _read(folder: Folder, name: str, columns: Sequence[str]) -> pa.Table:
    with open_table(folder, name) as file:
        return file.read(columns=list(columns))

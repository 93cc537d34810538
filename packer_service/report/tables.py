"""Tables of a dataset, opened for parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from packer_service.shards.store import Folder
from schemas.balance import BalanceOrder
from schemas.errors import TableInvalid
from schemas.tables import BALANCE, TABLES


@contextmanager
def open_balance(folder: Folder, order: BalanceOrder) -> Iterator[pq.ParquetFile]:
    """``balance.parquet``, of which loads are read by group and pack.

    Raises:
        TableInvalid: it is not Parquet, or has other columns or another number of rows.
    """
    name = "balance.parquet"
    try:
        with folder.open(name) as source:
            file = pq.ParquetFile(source)
            if not file.schema_arrow.equals(BALANCE):
                raise TableInvalid(name, f"has the columns {file.schema_arrow.names}, not {BALANCE.names}")
            if file.metadata.num_rows != order.n_packs * order.rows_per_pack:
                raise TableInvalid(
                    name,
                    f"has {file.metadata.num_rows} rows, not {order.rows_per_pack} for each of {order.n_packs} packs",
                )
            yield file
    except pa.ArrowException as error:
        raise TableInvalid(name, f"cannot be read ({' '.join(str(error).split())[:200]})") from None


def read_packs(folder: Folder, columns: Sequence[str]) -> pa.Table:
    """Some columns of ``packs.parquet``.

    Raises:
        TableInvalid: it is not Parquet, or has other columns.
    """
    return _read(folder, "packs.parquet", columns)


def read_column(folder: Folder, name: str, column: str) -> pa.ChunkedArray:
    """One column of a table.

    Raises:
        TableInvalid: it is not Parquet, or has other columns.
    """
    return _read(folder, name, [column]).column(column)


def _read(folder: Folder, name: str, columns: Sequence[str]) -> pa.Table:
    try:
        with folder.open(name) as source:
            file = pq.ParquetFile(source)
            if not file.schema_arrow.equals(TABLES[name]):
                raise TableInvalid(name, f"has the columns {file.schema_arrow.names}, not {TABLES[name].names}")
            return file.read(columns=list(columns))
    except pa.ArrowException as error:
        raise TableInvalid(name, f"cannot be read ({' '.join(str(error).split())[:200]})") from None

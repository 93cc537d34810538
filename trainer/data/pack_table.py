"""``packs.parquet``, of which a reader takes only where the samples lie, one row group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int64, Shaped

from preshard.schemas.errors import TableInvalid
from preshard.schemas.tables import PACKS, row_group_edges

PACKS_TABLE = "packs.parquet"

RECORD = np.dtype([("offset", "<i8"), ("size", "<i8"), ("header_size", "<u4"), ("head_crc32c", "<u4")])
"""What cannot be told from a pack's number: its key and its shard's name can."""

Records = Shaped[np.ndarray, "packs"]
"""An array of :data:`RECORD`, by ``pack_id``."""


class PackTable:
    """The rows of ``packs.parquet`` by row group.

    It can be pickled; the copy opens the file again when it reads.

    Args:
        opened: opens the file. To be pickled, it must be a function that can be.

    Raises:
        TableInvalid: it is not Parquet with the format's columns.
    """

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._opened = opened
        self._file: pq.ParquetFile | None = None
        with _as_table():
            metadata = self._parquet().metadata
            schema = self._parquet().schema_arrow
        if not schema.equals(PACKS):
            raise TableInvalid(PACKS_TABLE, f"has the columns {schema.names}, not {PACKS.names} with their types")
        self.edges: list[int] = row_group_edges(metadata).tolist()
        """Row group g has the packs from ``edges[g]`` to ``edges[g + 1] - 1``."""

    def __len__(self) -> int:
        """Number of packs."""
        return self.edges[-1]

    def read(self, group: int) -> Records:
        """The rows of a row group.

        Raises:
            TableInvalid: the row group cannot be decoded, or a value is null or cannot be a size or a place.
        """
        records = np.empty(self.edges[group + 1] - self.edges[group], RECORD)
        for name in RECORD.names or ():
            records[name] = self._column(group, name, RECORD[name])
        pa.default_memory_pool().release_unused()  # a worker reads few row groups, and then none for long
        return records

    def columns(self, group: int, names: Sequence[str]) -> Int64[np.ndarray, "columns packs"]:
        """Other columns of a row group, of whole numbers.

        Raises:
            TableInvalid: as :meth:`read`.
        """
        return np.stack([self._column(group, name, np.dtype(np.int64)) for name in names])

    def _column(self, group: int, name: str, dtype: np.dtype) -> np.ndarray:
        with _as_table():
            column = self._parquet().read_row_group(group, columns=[name], use_threads=False).column(0)
            column.validate()
            return _numbers(column, name, dtype)

    def close(self) -> None:
        """Closes the file. Reading opens it again."""
        if self._file is not None:
            self._file.close(force=True)
            self._file = None

    def _parquet(self) -> pq.ParquetFile:
        if self._file is None:
            self._file = pq.ParquetFile(self._opened(), pre_buffer=False)
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


def _numbers(column: pa.ChunkedArray, name: str, dtype: np.dtype) -> np.ndarray:
    if column.null_count:
        raise TableInvalid(PACKS_TABLE, f"{name} is null in {column.null_count} rows")
    # pyarrow's own conversion would import pandas where it is installed, 40 MB in every process.
    chunks = [np.frombuffer(chunk.buffers()[1], "<i8")[chunk.offset :][: len(chunk)] for chunk in column.chunks]
    numbers, kind = np.concatenate([np.empty(0, np.int64), *chunks]), np.iinfo(dtype)
    wrong = np.flatnonzero((numbers < 0) | (numbers > kind.max))
    if len(wrong):
        raise TableInvalid(PACKS_TABLE, f"{name} is {numbers[wrong[0]]}; it must be from 0 to {kind.max}")
    return numbers


@contextmanager
def _as_table() -> Iterator[None]:
    """What pyarrow raises of bytes that are no table, in one line of ours."""
    try:
        yield
    except TableInvalid:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TableInvalid(PACKS_TABLE, f"cannot be read as Parquet ({' '.join(str(error).split())[:200]})") from None

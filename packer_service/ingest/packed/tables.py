"""A table of a packed dataset that is a source: hashed once in a process, then read where rows are wanted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int64

from preshard.schemas.errors import ConfigError
from preshard.schemas.filesystem import join, locate
from preshard.schemas.manifest import TableEntry

_BUFFER = 8 << 20
"""Bytes that are asked of an object store at a time while a table is hashed."""

_ANY_PACK = (0, np.iinfo(np.int64).max)
"""What may be in a row group that does not say: one without rows."""


class StoredTable:
    """A Parquet file whose bytes are those that the manifest names. Not for several threads.

    Args:
        dataset: the dataset's URI.
        label: how errors name the dataset.
        entry: the table in the manifest.
        columns: those that are read.

    Raises:
        ConfigError: it is gone, or is not what the manifest says.
        OSError: it cannot be read.
    """

    def __init__(self, dataset: str, label: str, entry: TableEntry, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        filesystem, path = locate(join(dataset, entry.name))
        try:
            with filesystem.open_input_stream(path, compression=None, buffer_size=_BUFFER) as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        except FileNotFoundError:
            raise ConfigError(f"SOURCE {label}: {entry.name} is missing; put the file back") from None
        if sha256 != entry.sha256:
            raise ConfigError(f"SOURCE {label}: {entry.name} is damaged (its SHA-256 is another than stored)")
        self._opened = filesystem.open_input_file(path)
        self._file = pq.ParquetFile(self._opened)
        self._last: tuple[list[int], pa.Table] = ([], self._file.schema_arrow.empty_table().select(self.columns))

    @property
    def schema(self) -> pa.Schema:
        """Of the columns that are read."""
        return pa.schema([self._file.schema_arrow.field(name) for name in self.columns])

    def read(self) -> pa.Table:
        """All rows."""
        return self._file.read(columns=self.columns)

    def rows_of(self, first_pack: int, end_pack: int) -> pa.Table:
        """The rows of some packs, in order, from the row groups that have some; ``pack_id`` ascends in the table."""
        least, largest = self._ranges
        groups: list[int] = np.flatnonzero((largest >= first_pack) & (least < end_pack)).tolist()
        if groups != self._last[0]:  # the next packs are often in the same ones
            self._last = (groups, self._file.read_row_groups(groups, columns=self.columns))
        table = self._last[1]
        start, end = np.searchsorted(table["pack_id"].to_numpy(), (first_pack, end_pack))
        return table.slice(start, end - start)

    @cached_property
    def _ranges(self) -> tuple[Int64[np.ndarray, "groups"], Int64[np.ndarray, "groups"]]:
        """The smallest and the largest ``pack_id`` of each row group, as its footer has them."""
        metadata = self._file.metadata
        place = metadata.schema.names.index("pack_id")
        found = [metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)]
        ranges = [(each.min, each.max) if each is not None and each.has_min_max else _ANY_PACK for each in found]
        least, largest = np.array(ranges, np.int64).reshape(-1, 2).T
        return least, largest

"""A table of a packed dataset: checked once as a whole, then read by row groups, however many rows it has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache
from jaxtyping import Int64

from packer_service.ingest.source.file import SourceFile
from schemas.errors import ConfigError
from schemas.filesystem import join, locate
from schemas.manifest import ManifestHead
from schemas.tables import TABLES, row_group_edges

RECENT_GROUPS = 4
"""Row groups that stay in memory: at 65,536 rows of some 100 bytes, 6 MiB each."""

HASHED_BYTES = 1 << 23
"""Bytes that are hashed at a time; in an object store each is a request."""

PASSED_ROWS = 65_536
"""Rows that are in memory when all of them pass once."""


class TableFile:
    """Some columns of a table.

    Args:
        source: the dataset.
        manifest: says what the table's bytes are.
        name: the table's file.
        columns: those that are read.
    """

    def __init__(self, source: SourceFile, manifest: ManifestHead, name: str, columns: Sequence[str]) -> None:
        self._source, self._name, self._columns = source, name, list(columns)
        [self._entry] = [entry for entry in manifest.tables if entry.name == name]
        self._recent: LRUCache[int, pa.Table] = LRUCache(RECENT_GROUPS)

    def passed(self) -> Iterator[pa.Table]:
        """All rows in order, some thousand at a time.

        Raises:
            ConfigError: the table is gone, or is not what the manifest says.
        """
        schema = pa.schema([TABLES[self._name].field(name) for name in self._columns])
        for batch in self._file.iter_batches(PASSED_ROWS, columns=self._columns):
            yield pa.Table.from_batches([batch]).select(self._columns).cast(schema)

    def rows(self, first: int, end: int) -> pa.Table:
        """Rows ``[first, end)``. Raises as :meth:`passed` does."""
        edges = self._edges
        if first >= end:
            return pa.schema([TABLES[self._name].field(name) for name in self._columns]).empty_table()
        groups = range(int(np.searchsorted(edges, first, "right")) - 1, int(np.searchsorted(edges, end)))
        found = pa.concat_tables([self._group(number) for number in groups])
        return found.slice(first - int(edges[groups[0]]), end - first)

    def _group(self, number: int) -> pa.Table:
        found = self._recent.get(number)
        if found is None:
            found = self._recent[number] = self._file.read_row_group(number, columns=self._columns)
        return found.select(self._columns)

    @cached_property
    def _edges(self) -> Int64[np.ndarray, "row_groups_plus_1"]:
        return row_group_edges(self._file.metadata)

    @cached_property
    def _file(self) -> pq.ParquetFile:
        label = self._source.label
        filesystem, path = locate(join(self._source.uri, self._name))
        try:
            with filesystem.open_input_stream(path, compression=None, buffer_size=HASHED_BYTES) as whole:
                found = hashlib.file_digest(whole, "sha256").hexdigest()
            opened = pq.ParquetFile(filesystem.open_input_file(path))
        except FileNotFoundError:
            raise ConfigError(f"SOURCE {label}: {self._name} is missing; put the file back") from None
        except pa.ArrowInvalid:
            found = ""
        if found != self._entry.sha256:
            raise ConfigError(f"SOURCE {label}: {self._name} is damaged (its SHA-256 is another than stored)")
        if opened.metadata.num_rows != self._entry.rows:
            raise ConfigError(f"SOURCE {label}: {self._name} is not the manifest's; put the file back")
        return opened

"""Rows of Parquet files by row group, read one at a time: a shard's documents lie in many groups, in any order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from preshard.packer_service.ingest.fetch import recent_values
from preshard.packer_service.ingest.source.file import SourceFile, Watched, reason_of
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.files.filesystem import locate

Columns = tuple[str, ...] | None

CACHED_BYTES = 256 * 2**20
"""Most memory of the row groups that a process keeps; the last one read is kept whatever its size."""


class DamagedGroupError(Exception):
    """A row group whose bytes can be read but are not rows, so that none of its documents is known.

    ``n_rows`` is what the file's footer promises, which may be as wrong as the rest.
    """

    def __init__(self, group: int, n_rows: int) -> None:
        super().__init__(f"row group {group} is damaged: none of its {n_rows} rows can be read; write the file again")
        self.n_rows = n_rows


class RowGroups:
    """The row groups read last. Packs take documents from all over a source, so the same group is needed often."""

    def __init__(self, kept_bytes: int) -> None:
        self.recent: LRUCache[tuple[str, int, Columns, int], pa.Table] = recent_values(
            kept_bytes, lambda table: int(table.nbytes)
        )

    def table(self, uri: str, mtime_ns: int, group: int, columns: Columns = None) -> pa.Table:
        """Some columns of a row group, or all of them, with all of its rows.

        ``mtime_ns`` distinguishes two states of a file. No document needs the other columns, which may be large, or
        hold values that Python cannot represent.

        Raises:
            DamagedGroupError: its bytes are there, but are not rows.
            OSError: the file cannot be read.
        """
        key = (uri, mtime_ns, columns, group)
        table = self.recent.get(key)
        if table is None:
            table = _read(uri, group, columns)
            self.recent[key] = table
        return table


ROW_GROUPS = RowGroups(CACHED_BYTES)
"""The row groups that this process keeps."""


def schema(file: SourceFile) -> pa.Schema:
    """The columns.

    Raises:
        ConfigError: it is not Parquet.
    """
    return _footer(file).schema_arrow


def fragments(file: SourceFile) -> list[tuple[int, int]]:
    """Each group of rows is one.

    Raises:
        ConfigError: it is not Parquet.
    """
    return [(group, group + 1) for group in range(_footer(file).num_row_groups)]


def _footer(file: SourceFile) -> pq.ParquetFile:
    filesystem, path = locate(file.uri)
    try:
        with filesystem.open_input_file(path) as opened:
            return pq.ParquetFile(opened)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise ConfigError(f"SOURCE {file.uri}: is not a Parquet file ({reason_of(error)})") from None


def group(file: SourceFile, number: int) -> pa.Table:
    """One group of rows, with the columns that are read.

    Raises:
        DamagedGroupError: its bytes are there, but are not rows.
        OSError: the file cannot be read.
    """
    return ROW_GROUPS.table(file.uri, file.mtime_ns, number, file.columns)


def first_rows(file: SourceFile, most: int) -> list[Any]:
    """A few rows; none where they are damaged, which is found when they are measured.

    Raises:
        OSError: the file cannot be read.
    """
    filesystem, path = locate(file.uri)
    try:
        with filesystem.open_input_file(path) as opened:
            batches = pq.ParquetFile(opened).iter_batches(most, columns=list(file.columns or ()))
            return next(batches, pa.record_batch({})).to_pylist()
    except (pa.ArrowException, UnicodeDecodeError):
        return []


def _read(uri: str, group: int, columns: Columns) -> pa.Table:
    filesystem, path = locate(uri)
    try:
        with filesystem.open_input_file(path) as opened:
            return _parse(opened, group, columns)
    except (OSError, UnicodeDecodeError, pa.ArrowException):
        # Arrow also raises OSError for damaged data: read once more, watching for errors of the file system itself.
        with filesystem.open_input_file(path) as opened:
            return _parse_watched(Watched(opened), group, columns)


def _parse(opened: Any, group: int, columns: Columns) -> pa.Table:
    return pq.ParquetFile(opened).read_row_group(group, columns=None if columns is None else list(columns))


def _parse_watched(watched: Watched, group: int, columns: Columns) -> pa.Table:
    n_rows = 0
    try:
        n_rows = pq.ParquetFile(watched).metadata.row_group(group).num_rows
        return _parse(watched, group, columns)
    except IndexError:
        raise DamagedGroupError(group, 0) from None
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        if watched.failure is not None:
            raise watched.failure from error
        raise DamagedGroupError(group, n_rows) from error


def rows_of(table: pa.Table) -> Iterator[Any]:
    """Every row, or why it cannot be read, one in memory at a time."""
    return (row_at(table, index) for index in range(len(table)))


def row_at(table: pa.Table, index: int) -> Any:
    """A row as Python values, or why it cannot be read."""
    try:
        return table.slice(index, 1).to_pylist()[0]
    except UnicodeDecodeError:
        # Arrow does not check that a file's strings are UTF-8.
        return DocumentError("bad_row", "a string of the row is not UTF-8")
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return DocumentError("bad_row", f"a value of the row cannot be read ({type(error).__name__})")

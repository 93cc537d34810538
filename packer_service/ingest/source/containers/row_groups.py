"""Rows of Parquet files by row group, read one at a time: a shard's documents lie in many groups, in any order."""

from __future__ import annotations

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


RECENT: LRUCache[tuple[str, int, Columns, int], pa.Table] = recent_values(CACHED_BYTES, lambda table: int(table.nbytes))
"""The row groups read last, of files in one state. Packs take documents from all over a source, so the same group is
needed often."""


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
    """One group of rows, with the columns that are read: the others may be large, or hold what Python cannot represent.

    Raises:
        DamagedGroupError: its bytes are there, but are not rows.
        OSError: the file cannot be read.
    """
    key = (file.uri, file.mtime_ns, file.columns, number)
    table = RECENT.get(key)
    if table is None:
        table = RECENT[key] = _read(file.uri, number, file.columns)
    return table


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
    except (IndexError, OSError, UnicodeDecodeError, pa.ArrowException) as error:
        if watched.failure is not None:
            raise watched.failure from error
        raise DamagedGroupError(group, n_rows) from error


def row_at(table: pa.Table, index: int) -> Any:
    """A row as Python values, or why it cannot be read."""
    try:
        return table.slice(index, 1).to_pylist()[0]
    except UnicodeDecodeError:
        # Arrow does not check that a file's strings are UTF-8.
        return DocumentError("bad_row", "a string of the row is not UTF-8")
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return DocumentError("bad_row", f"a value of the row cannot be read ({type(error).__name__})")

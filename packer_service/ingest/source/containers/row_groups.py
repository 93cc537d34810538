"""Rows of Parquet files by row group, read one at a time: a shard's documents lie in many groups, in any order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from preshard.packer_service.ingest.fetch import recent_values
from preshard.packer_service.ingest.source.containers.arrow_values import TableRows
from preshard.packer_service.ingest.source.file import SourceFile, Watched, reason_of
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import locate

Columns = tuple[str, ...] | None

PAGE_BYTES = 2**20
"""Bytes that are read at a time where a few rows are wanted, not the whole of a column in a row group."""

BATCH_BYTES = 256 * 2**20
"""Bytes that are read at a time of a row group that cannot be read at once."""

CACHED_BYTES = 256 * 2**20
"""Most memory of the row groups that a process keeps; the last one read is kept whatever its size."""


class DamagedGroupError(Exception):
    """A row group whose bytes can be read but are not rows, so that none of its documents is known.

    ``n_rows`` is what the file's footer promises, which may be as wrong as the rest; 0 where nothing promises any.
    """

    def __init__(self, group: int, n_rows: int, *, encrypted: bool = False) -> None:
        what = "is encrypted in a column that is read" if encrypted else "is damaged"
        cure = "write the file without encryption" if encrypted else "write the file again"
        super().__init__(
            f"row group {group} {what}: none of its {f'{n_rows} ' if n_rows > 0 else ''}rows can be read; {cure}"
        )
        self.n_rows = n_rows


RECENT: LRUCache[tuple[str, int, Columns, int], TableRows] = recent_values(CACHED_BYTES, lambda rows: int(rows.nbytes))
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
        if "encrypted" in str(error):
            raise ConfigError(f"SOURCE {file.uri}: is encrypted; write the file without encryption") from None
        raise ConfigError(f"SOURCE {file.uri}: is not a Parquet file ({reason_of(error)})") from None


def group(file: SourceFile, number: int) -> TableRows:
    """One group of rows, with the columns that are read: the others may be large, or hold what Python cannot represent.

    Raises:
        DamagedGroupError: its bytes are there, but are not rows.
        OSError: the file cannot be read.
    """
    key = (file.uri, file.mtime_ns, file.columns, number)
    rows = RECENT.get(key)
    if rows is None:
        rows = RECENT[key] = TableRows(_read(file.uri, number, file.columns))
    return rows


def first_rows(file: SourceFile, most: int) -> list[Any]:
    """A few rows; none where they are damaged, which is found when they are measured.

    Raises:
        OSError: the file cannot be read.
    """
    filesystem, path = locate(file.uri)
    try:
        with filesystem.open_input_file(path) as opened:
            parquet = pq.ParquetFile(opened, buffer_size=PAGE_BYTES)
            batches = parquet.iter_batches(most, columns=list(file.columns or ()))
            found = TableRows(pa.Table.from_batches([next(batches, pa.record_batch({}))]))
            return [found.row(i) for i in range(len(found))]
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
    parquet, names = pq.ParquetFile(opened), None if columns is None else list(columns)
    try:
        return parquet.read_row_group(group, columns=names)
    except pa.ArrowNotImplementedError:  # more than 2 GiB of images in lists: Arrow joins their parts in batches alone
        found = parquet.metadata.row_group(group)
        rows = max(1, found.num_rows * BATCH_BYTES // max(1, found.total_byte_size))
        return pa.Table.from_batches(parquet.iter_batches(rows, row_groups=[group], columns=names))


def _parse_watched(watched: Watched, group: int, columns: Columns) -> pa.Table:
    n_rows = 0
    try:
        n_rows = pq.ParquetFile(watched).metadata.row_group(group).num_rows
        return _parse(watched, group, columns)
    except (IndexError, OSError, UnicodeDecodeError, pa.ArrowException) as error:
        if watched.failure is not None:
            raise watched.failure from error
        raise DamagedGroupError(group, n_rows, encrypted="crypt" in str(error)) from error

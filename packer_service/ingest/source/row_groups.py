"""Rows of Parquet files by row group, read a row at a time: documents of a shard lie in many groups, in no order."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from packer_service.ingest.cache import recent_values
from packer_service.ingest.source.rows import FIELDS
from schemas.errors import DocumentError
from schemas.filesystem import locate

KEPT_BYTES = 256 * 2**20
"""Most memory for row groups that a process keeps, as Arrow has them; the last one read is kept whatever its size."""


class DamagedGroupError(Exception):
    """A row group whose bytes can be read and are no rows, so that none of its documents is known.

    ``n_rows`` is what the file's footer promises, which may be as wrong as the rest.
    """

    def __init__(self, group: int, n_rows: int) -> None:
        super().__init__(f"row group {group} is damaged: none of its {n_rows} rows can be read; write the file anew")
        self.n_rows = n_rows


class RowGroups:
    """Row groups that were read last. Packs take documents from all over a source, so the same group comes often."""

    def __init__(self, kept_bytes: int) -> None:
        self.recent: LRUCache[tuple[str, int, int], pa.Table] = recent_values(
            kept_bytes, lambda table: int(table.nbytes)
        )

    def table(self, uri: str, mtime_ns: int, group: int) -> pa.Table:
        """The fields of :data:`~packer_service.ingest.source.rows.FIELDS` that a row group has, with all of its rows.

        ``mtime_ns`` tells two states of a file apart.

        Raises:
            DamagedGroupError: its bytes are there, but are no rows.
            OSError: the file cannot be read.
        """
        key = (uri, mtime_ns, group)
        table = self.recent.get(key)
        if table is None:
            table = _read(uri, group)
            self.recent[key] = table
        return table


ROW_GROUPS = RowGroups(KEPT_BYTES)
"""Those of this process."""


def _read(uri: str, group: int) -> pa.Table:
    filesystem, path = locate(uri)
    try:
        with filesystem.open_input_file(path) as opened:
            return _parse(opened, group)
    except (OSError, UnicodeDecodeError, pa.ArrowException):
        # Arrow raises OSError for damaged data, too: read once more, looking at what the file system itself says.
        with filesystem.open_input_file(path) as opened:
            return _parse_watched(_Watched(opened), group)


def _parse(opened: Any, group: int) -> pa.Table:
    # Other columns may be large, or hold what Python has no value for, and no document needs them.
    return pq.ParquetFile(opened).read_row_group(group, columns=list(FIELDS))


def _parse_watched(watched: _Watched, group: int) -> pa.Table:
    n_rows = 0
    try:
        n_rows = pq.ParquetFile(watched).metadata.row_group(group).num_rows
        return _parse(watched, group)
    except IndexError:
        raise DamagedGroupError(group, 0) from None
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        if watched.failure is not None:
            raise watched.failure from error
        raise DamagedGroupError(group, n_rows) from error


class _Watched(io.RawIOBase):
    """A file that remembers its file system's error."""

    def __init__(self, opened: pa.NativeFile) -> None:
        self.opened = opened
        self.failure: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self.opened.read(None if size < 0 else size)
        except OSError as error:
            self.failure = error
            raise

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self.opened.seek(offset, whence))

    def tell(self) -> int:
        return int(self.opened.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def rows_of(table: pa.Table) -> Iterator[Any]:
    """Every row, or why it cannot be read, one in memory at a time."""
    return (row_at(table, index) for index in range(len(table)))


def row_at(table: pa.Table, index: int) -> Any:
    """A row as Python values, or why it cannot be read."""
    try:
        return table.slice(index, 1).to_pylist()[0]
    except UnicodeDecodeError:
        # Arrow takes a file at its word that its strings are UTF-8.
        return DocumentError("bad_row", "a string of the row is not UTF-8")
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return DocumentError("bad_row", f"a value of the row cannot be read ({type(error).__name__})")

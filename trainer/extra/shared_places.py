"""Places of a large dataset's packs in a file that the processes of a host share."""

from __future__ import annotations

import os
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from preshard.schemas.errors import ReaderError, TableChanged
from preshard.schemas.files.printed import several
from preshard.schemas.manifest import TableEntry
from preshard.trainer.data.pack_index import PACKS_TABLE, RECORD, PackTable, Records

REVISION = 1
"""Revision of the file's own form, which its name has: a version that writes another form must not read this one."""

FILLED = b"\1"


def share_places(opened: Callable[[], Any], entry: TableEntry, *, sparing: bool) -> SharedPlaces:
    """The places of the packs that a table lists.

    Args:
        opened: opens the table; can be pickled.
        entry: what the manifest says of it.
        sparing: as of :class:`PackTable`.

    Raises:
        TableChanged: it has another size than the manifest says.
        TableInvalid: it is not Parquet with the format's columns.
        ReaderError: the file that processes share cannot be made.
    """
    table = PackTable(partial(_open_checked, opened, entry.bytes), entry.rows, sparing=sparing)
    return SharedPlaces(table, entry.sha256)


def _open_checked(opened: Callable[[], Any], size: int) -> Any:
    file = opened()
    if file.size() != size:
        raise TableChanged(PACKS_TABLE, f"has {file.size()} bytes, not {size}")
    return file


class SharedPlaces:
    """The rows of ``packs.parquet`` in a temporary file of this host.

    The file has one byte per row group, which says whether its rows are there, and then one record per pack. It is
    named after the table's hash, so that it can never hold the rows of another one. Two processes that fill the same
    row group at once write the same bytes.

    Args:
        table: where the rows come from.
        digest: SHA-256 of the table.
        folder: where the file lies; by default a folder of this user's in the temporary folder (``TMPDIR``).

    Raises:
        ReaderError: the file cannot be made.
    """

    def __init__(self, table: PackTable, digest: str, folder: Path | None = None) -> None:
        self._table = table
        self._path = (folder or _own_folder()) / f"{digest}.places-{REVISION}"
        self._begin = len(table.edges) - 1
        self._open()

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, pack_id: int) -> np.void:
        """The record of a pack.

        Raises:
            TableInvalid: its row group cannot be decoded.
            ReaderError: the file cannot be written.
        """
        group = bisect_right(self._table.edges, pack_id) - 1
        if group not in self._known:
            if os.pread(self._file, 1, group) != FILLED:
                self._fill(group)
            self._known.add(group)
        data = os.pread(self._file, RECORD.itemsize, self._begin + pack_id * RECORD.itemsize)
        record: np.void = np.frombuffer(data, RECORD)[0]
        return record

    def _fill(self, group: int) -> None:
        records = self._table.read(group)
        try:
            _write(self._file, records, self._begin + self._table.edges[group] * RECORD.itemsize)
            os.fdatasync(self._file)  # after a power failure no row group may count as filled that is not there
            os.pwrite(self._file, FILLED, group)
        except OSError as error:
            raise self._cannot_write(error) from None

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._cannot_write(error) from None
        self._known: set[int] = set()
        weakref.finalize(self, os.close, self._file)

    def _cannot_write(self, error: OSError) -> ReaderError:
        mib = -(-len(self._table) * RECORD.itemsize // 2**20)
        return ReaderError(
            f"{self._path} cannot be written ({error.strerror}); it needs {mib} MiB for the places of "
            f"{several(len(self), 'pack')}: set TMPDIR to a folder with enough space"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_file", "_known")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _write(file: int, records: Records, at: int) -> None:
    left = memoryview(records.tobytes())
    while left:
        written = os.pwrite(file, left, at)
        left, at = left[written:], at + written


def _own_folder() -> Path:
    """A folder that only this user can write to: another could make a reader look at the wrong places."""
    folder = Path(tempfile.gettempdir()) / f"preshard-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        is_ours = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    except OSError as error:
        raise ReaderError(f"{folder} cannot be created ({error.strerror}); set TMPDIR to your own folder") from None
    if not is_ours:
        raise ReaderError(f"{folder} belongs to another user; set TMPDIR to your own folder")
    return folder

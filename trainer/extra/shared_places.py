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
from preshard.trainer.data.pack_index import PACKS_TABLE, RECORD, PackTable

REVISION = 2
"""Revision of the file's own form, which its name has: a version that writes another form must not read this one."""

FILLED = b"\1"

NUMBER = np.dtype("<i8")


def share_places(opened: Callable[[], Any], entry: TableEntry, *, sparing: bool) -> SharedPlaces:
    """The places of the packs that a table lists.

    Args:
        opened: opens the table; can be pickled.
        entry: what the manifest says of it.
        sparing: as of :class:`PackTable`.

    Raises:
        TableChanged: it has another size than the manifest says, where no process has opened it before.
        TableInvalid: it is not Parquet with the format's columns, likewise.
        ReaderError: the file that processes share cannot be made.
    """
    open_table = partial(PackTable, partial(_open_checked, opened, entry.bytes), entry.rows, sparing=sparing)
    return SharedPlaces(open_table, entry.rows, entry.sha256)


def _open_checked(opened: Callable[[], Any], size: int) -> Any:
    file = opened()
    if file.size() != size:
        raise TableChanged(PACKS_TABLE, f"has {file.size()} bytes, not {size}")
    return file


class SharedPlaces:
    """The rows of ``packs.parquet`` in a temporary file of this host.

    The file begins with the edges of the table's row groups, behind their number, which is 0 until they are there. Then
    it has one byte per row group, which says whether its rows are there, and one record per pack. So one process opens
    the table for all. The file is named after the table's hash, so that it can never hold the rows of another one. Two
    processes that fill the same row group at once write the same bytes.

    Args:
        open_table: opens the table that the rows come from; can be pickled.
        rows: rows of the table.
        digest: SHA-256 of the table.
        folder: where the file lies; by default a folder of this user's in the temporary folder (``TMPDIR``).

    Raises:
        ReaderError: the file cannot be made.
    """

    def __init__(self, open_table: Callable[[], PackTable], rows: int, digest: str, folder: Path | None = None) -> None:
        self._open_table, self._rows = open_table, rows
        self._path = (folder or _own_folder()) / f"{digest}.places-{REVISION}"
        self._table: PackTable | None = None
        self._open()
        self._edges = self._read_edges() or self._write_edges()

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, pack_id: int) -> np.void:
        """The record of a pack.

        Raises:
            TableInvalid: its row group cannot be decoded.
            ReaderError: the file cannot be written.
        """
        group, flags = bisect_right(self._edges, pack_id) - 1, NUMBER.itemsize * (1 + len(self._edges))
        at = flags + len(self._edges) - 1 + pack_id * RECORD.itemsize
        if group not in self._known and os.pread(self._file, 1, flags + group) != FILLED:
            self._fill(group, flags)
        self._known.add(group)
        data = os.pread(self._file, RECORD.itemsize, at)
        if len(data) < RECORD.itemsize or not np.frombuffer(data, RECORD)["head_crc32c"]:  # the file was cut short
            self._fill(group, flags)
            data = os.pread(self._file, RECORD.itemsize, at)
        record: np.void = np.frombuffer(data, RECORD)[0]
        return record

    def _fill(self, group: int, flags: int) -> None:
        """Writes the rows of a row group, from the table."""
        if self._table is None:
            self._table = self._open_table()
        begin = flags + len(self._edges) - 1 + self._edges[group] * RECORD.itemsize
        self._write(self._table.read(group), begin, FILLED, flags + group)

    def _read_edges(self) -> list[int]:
        """The edges that another process has written; nothing where none has, or they are damaged."""
        number, most = int.from_bytes(os.pread(self._file, NUMBER.itemsize, 0), "little"), os.fstat(self._file).st_size
        data = os.pread(self._file, min(NUMBER.itemsize * number, most), NUMBER.itemsize)
        edges: list[int] = np.frombuffer(data[: len(data) // NUMBER.itemsize * NUMBER.itemsize], NUMBER).tolist()
        is_whole = len(edges) == number and edges[:1] == [0] and edges[-1] == self._rows and edges == sorted(edges)
        return edges if is_whole else []

    def _write_edges(self) -> list[int]:
        self._table = table = self._open_table()
        edges = table.edges
        self._write(np.array(edges, NUMBER), NUMBER.itemsize, len(edges).to_bytes(NUMBER.itemsize, "little"), 0)
        return edges

    def _write(self, values: np.ndarray, at: int, mark: bytes, marked: int) -> None:
        """Writes values, and then what says that they are there."""
        left = memoryview(values.tobytes())
        try:
            while left:
                written = os.pwrite(self._file, left, at)
                left, at = left[written:], at + written
            os.fdatasync(self._file)  # after a power failure nothing may count as written that is not there
            os.pwrite(self._file, mark, marked)
        except OSError as error:
            raise self._cannot_write(error) from None

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._cannot_write(error) from None
        self._known = set[int]()
        weakref.finalize(self, os.close, self._file)

    def _cannot_write(self, error: OSError) -> ReaderError:
        mib = -(-self._rows * RECORD.itemsize // 2**20)
        return ReaderError(
            f"{self._path} cannot be written ({error.strerror}); it needs {mib} MiB for the places of "
            f"{several(self._rows, 'pack')}: set TMPDIR to a folder with enough space"
        )

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name not in ("_file", "_known")}
        return {**kept, "_table": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


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

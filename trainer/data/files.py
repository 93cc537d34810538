"""A dataset's files on any filesystem, read by ranges: what was asked for is counted, and nothing else is read."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from schemas.codec import decode_manifest, decode_table
from schemas.errors import (
    ConfigError,
    ManifestInvalid,
    ManifestMissing,
    ReaderError,
    ShardChanged,
    ShardMissing,
    TableChanged,
    TableMissing,
)
from schemas.filesystem import locate
from schemas.manifest import MANIFEST, SHARDS, Manifest
from schemas.tables import PACKS

OPEN_SHARDS = 16
"""Shards kept open at once. A shuffled order comes back to a shard soon, since groups of packs lie together."""

PACKS_TABLE = "packs.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackPlace:
    """A row of ``packs.parquet``: where a sample lies, in bytes. ``size`` is its header part and all of its images."""

    pack_id: int
    key: str
    shard: str
    offset: int
    header_size: int
    size: int

    @property
    def where(self) -> str:
        """How errors name the sample."""
        return f"{SHARDS}/{self.shard}, sample {self.key}"


class PackIndex:
    """Every pack's place, by ``pack_id``. Columns, not objects: every worker of every rank holds them."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.select([field.name for field in fields(PackPlace)]).combine_chunks()

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, pack_id: int) -> PackPlace:
        return PackPlace(**{name: self._table[name][pack_id].as_py() for name in self._table.column_names})


class DatasetFiles:
    """The files of one dataset.

    ``bytes_read`` counts the bytes asked from shards by this object. It can be pickled: open files stay behind, and the
    copy counts on from the same figure.

    Args:
        path: the dataset's folder, a path or a URI that pyarrow opens (``s3://bucket/dataset``).
        filesystem: the filesystem in which ``path`` lies, when neither a path nor a URI can say so.

    Raises:
        ManifestMissing: no ``manifest.json`` there; the folder is no dataset, or its job has not finished.
        ManifestInvalid: another format version, or a field is missing, unknown or of a wrong type.
        ReaderError: no filesystem opens the URI.
    """

    def __init__(self, path: str | Path, filesystem: fs.FileSystem | None = None) -> None:
        self.location = str(path)
        self._filesystem, self._root = (filesystem, self.location) if filesystem else self._located()
        self._open: OrderedDict[str, pa.NativeFile] = OrderedDict()
        self.bytes_read = 0
        data = self._read_whole(MANIFEST, lambda where: ManifestMissing(where, "is not there: no (finished) dataset"))
        self.manifest: Manifest = decode_manifest(data, MANIFEST)

    def _located(self) -> tuple[fs.FileSystem, str]:
        try:
            return locate(self.location)
        except (ConfigError, OSError) as error:
            reason = " ".join(str(error).removeprefix(f"{self.location}: ").split())
            raise ReaderError(
                f"dataset {self.location}: no filesystem opens it ({reason}); give a path or s3://, gs:// ..."
            ) from None

    def packs(self) -> PackIndex:
        """Reads where every pack lies.

        Raises:
            ManifestInvalid: the manifest lists no ``packs.parquet``.
            TableMissing: ``packs.parquet`` is not there.
            TableChanged: it is not the file that the manifest was written for.
            TableInvalid: it is not Parquet with the columns of the format.
        """
        entries = [entry for entry in self.manifest.tables if entry.name == PACKS_TABLE]
        if not entries:
            raise ManifestInvalid(MANIFEST, f"tables: lists no {PACKS_TABLE}")
        data = self._read_whole(PACKS_TABLE, lambda where: TableMissing(where, "is not there"))
        digest = hashlib.sha256(data).hexdigest()
        if digest != entries[0].sha256:
            raise TableChanged(PACKS_TABLE, f"has SHA-256 {digest}, not {entries[0].sha256}")
        return PackIndex(decode_table(data, PACKS, PACKS_TABLE))

    def read_range(self, shard: str, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes of a shard from ``offset``, in one request.

        Raises:
            ShardMissing: no such shard.
            ShardChanged: the shard ends before.
        """
        file = self._opened(shard)
        self.bytes_read += size
        data: bytes = file.read_at(size, offset)
        if len(data) != size:
            raise ShardChanged(
                f"{SHARDS}/{shard}", f"gives {len(data)} of the {size} bytes from byte {offset}: cut short"
            )
        return data

    def close(self) -> None:
        """Closes every open shard. Reading opens them again."""
        while self._open:
            self._open.popitem()[1].close()

    def _opened(self, shard: str) -> pa.NativeFile:
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        while len(self._open) >= OPEN_SHARDS:
            self._open.popitem(last=False)[1].close()
        name = f"{SHARDS}/{shard}"
        self._open[shard] = self._open_file(name, lambda where: ShardMissing(where, "is not there"))
        return self._open[shard]

    def _read_whole(self, name: str, missing: Callable[[str], Exception]) -> bytes:
        with self._open_file(name, missing) as file:
            data: bytes = file.read()
        return data

    def _open_file(self, name: str, missing: Callable[[str], Exception]) -> pa.NativeFile:
        try:
            return self._filesystem.open_input_file(f"{self._root.rstrip('/')}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            raise missing(f"{self.location.rstrip('/')}/{name}") from None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

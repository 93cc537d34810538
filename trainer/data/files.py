"""A dataset's files on any filesystem, read by ranges: only the bytes asked for, which are counted."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from preshard.schemas.dataset.read_manifest import read_manifest_head
from preshard.schemas.errors import (
    ConfigError,
    FormatError,
    ManifestMissing,
    ReaderError,
    ShardChanged,
    ShardMissing,
    TableChanged,
    TableMissing,
)
from preshard.schemas.files.filesystem import join, locate, open_regular, read_within
from preshard.schemas.files.printed import without_secrets
from preshard.schemas.manifest import LARGEST_MANIFEST, MANIFEST, SHARDS, ManifestHead
from preshard.schemas.read_config import ReadConfig, read_config
from preshard.trainer.data.pack_index import PACKS_TABLE, WHOLE_TABLE, PackIndex
from preshard.trainer.extras import load_extra

OPEN_SHARDS = 16
"""Shards kept open at once. An epoch's order soon returns to a shard, since groups of packs lie together."""


class DatasetFiles:
    """The files of one dataset.

    ``bytes_read`` counts the bytes that this object has asked from shards. It can be pickled: open files stay behind,
    and the copy continues counting from the same figure.

    Args:
        path: the dataset's folder, a path or a URI that pyarrow opens (``s3://bucket/dataset``).
        filesystem: the filesystem that holds ``path``, where a path or URI cannot say it.
        reads: ``cache_dir``, ``cache_limit`` and ``store_timeout``, as of ``PackedDataset``.

    Raises:
        ManifestMissing: there is no ``manifest.json``: the folder is not a dataset, or its job has not finished.
        ManifestInvalid: it has another format version, or a field is missing, unknown or of a wrong type.
        ReaderError: no filesystem opens the URI.
    """

    def __init__(self, path: str | Path, filesystem: fs.FileSystem | None = None, **reads: Any) -> None:
        self.location = str(path)
        self._filesystem, self._root = (filesystem, self.location) if filesystem else self._located()
        self._open: OrderedDict[str, pa.NativeFile] = OrderedDict()
        self.bytes_read = 0
        plain = not reads and isinstance(self._filesystem, fs.LocalFileSystem)
        self.store = None if plain else load_extra("store").open_store(self, self._filesystem, self._root, **reads)
        self.manifest: ManifestHead = self._persist(MANIFEST, self._read_manifest)
        self.config: ReadConfig = read_config(self.manifest)

    def _persist(self, name: str, call: Callable[[], Any]) -> Any:
        return call() if self.store is None else self.store.persist(name, call)

    def _read_manifest(self) -> ManifestHead:
        why = ": not a dataset, or packing has not finished"
        with self._open_file(MANIFEST, ManifestMissing, why, LARGEST_MANIFEST) as file:
            return read_manifest_head(file, MANIFEST) if self.store is None else self.store.read_head(file)

    def _located(self) -> tuple[fs.FileSystem, str]:
        try:
            return locate(self.location)
        except (ConfigError, OSError) as error:
            reason = " ".join(str(error).removeprefix(f"{without_secrets(self.location)}: ").split())
            raise ReaderError(
                f"dataset {self.location}: it cannot be opened ({reason}); give a path, or a URI such as s3://... or gs://..."
            ) from None

    def packs(self) -> PackIndex:
        """The place of every pack.

        A table of up to ``WHOLE_TABLE`` bytes is read and checked whole. Of a larger one only the size is checked, and
        its rows are read as they are wanted: what they say is held against each sample's own head.

        Raises:
            TableMissing: ``packs.parquet`` is missing.
            TableChanged: its bytes are not those that the manifest lists.
            TableInvalid: it is not Parquet with the format's columns.
            ReaderError: no folder holds the places of a large dataset's packs.
        """
        return self._persist(PACKS_TABLE, self._packs)

    def _packs(self) -> PackIndex:
        entry = self.manifest.table(PACKS_TABLE)
        if entry.bytes > WHOLE_TABLE:
            places = load_extra("shared_places").share_places(self.open_packs, entry, sparing=self.store is None)
            return PackIndex(places, packs_per_shard=self.config.packs_per_shard)
        with self.open_packs() as file:
            data: bytes = file.read(entry.bytes + 1)
        digest = hashlib.sha256(data).hexdigest()
        if digest != entry.sha256:
            raise TableChanged(PACKS_TABLE, f"has SHA-256 {digest}, not {entry.sha256}")
        return PackIndex.of_bytes(data, self.manifest.counts.packs, packs_per_shard=self.config.packs_per_shard)

    def open_packs(self) -> pa.NativeFile:
        """Opens ``packs.parquet``.

        Raises:
            TableMissing: it is missing.
        """
        return self.open_table(PACKS_TABLE)

    def open_table(self, name: str) -> pa.NativeFile:
        """Opens one of the dataset's tables.

        Raises:
            TableMissing: it is missing.
        """
        return self._open_file(name, TableMissing)

    def read_range(self, shard: str, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes of a shard from ``offset``, in one request.

        Raises:
            ShardMissing: there is no such shard.
            ShardChanged: the shard ends earlier.
        """
        self.bytes_read += size
        data = read_within(self._opened(shard), offset, size)
        if len(data) != size:
            raise ShardChanged(
                f"{SHARDS}/{shard}", f"has only {len(data)} of the {size} bytes from byte {offset}: it was cut short"
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
        self._open[shard] = self._open_file(f"{SHARDS}/{shard}", ShardMissing)
        return self._open[shard]

    def _open_file(
        self, name: str, missing: type[FormatError], why: str = "", most: int | None = None
    ) -> pa.NativeFile:
        try:
            return open_regular(self._filesystem, f"{self._root.rstrip('/')}/{name}", name, most)
        except (FileNotFoundError, NotADirectoryError):
            raise missing(self.address(name), f"is missing{why}") from None

    def address(self, name: str) -> str:
        """Address of a file, as errors say it."""
        return join(self.location, *name.split("/"))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

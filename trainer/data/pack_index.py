"""Where every pack of a dataset lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from preshard.schemas.codec import sample_key, shard_name
from preshard.schemas.manifest import SHARDS, TableEntry
from preshard.trainer.data.pack_table import RECORD, PackTable, Records
from preshard.trainer.data.shared_places import SharedPlaces

WHOLE_TABLE = 8 * 2**20
"""Largest ``packs.parquet`` in bytes that every process holds for itself: some 140,000 packs, in 4 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackPlace:
    """A row of ``packs.parquet``: where a sample lies, in bytes, and the checksum of its head.

    ``size`` covers its header part and all its crops.
    """

    pack_id: int
    key: str
    shard: str
    offset: int
    header_size: int
    head_crc32c: int
    size: int

    @property
    def where(self) -> str:
        """How errors name the sample."""
        return f"{SHARDS}/{self.shard}, sample {self.key}"


class PackIndex:
    """Every pack's place, by ``pack_id``: a small table as an array, a large one in a file that processes share.

    Args:
        records: what ``packs.parquet`` says of each pack.
        packs_per_shard: packs of every shard but the last.
    """

    def __init__(self, records: Records | SharedPlaces, *, packs_per_shard: int) -> None:
        self._records, self._packs_per_shard = records, packs_per_shard

    @classmethod
    def of_bytes(cls, data: bytes, *, packs_per_shard: int) -> PackIndex:
        """The index of a table that was read whole.

        Raises:
            TableInvalid: it is not Parquet with the format's columns.
        """
        table = PackTable(partial(pa.BufferReader, data))
        parts = [table.read(group) for group in range(len(table.edges) - 1)]
        return cls(np.concatenate([np.empty(0, RECORD), *parts]), packs_per_shard=packs_per_shard)

    @classmethod
    def of_file(cls, opened: Callable[[], Any], entry: TableEntry, *, packs_per_shard: int) -> PackIndex:
        """The index of a table whose row groups are read when one of their packs is wanted.

        Args:
            opened: opens the table; can be pickled.
            entry: what the manifest says of it.
            packs_per_shard: packs of every shard but the last.

        Raises:
            TableInvalid: it is not Parquet with the format's columns.
            ReaderError: the file that processes share cannot be made.
        """
        return cls(SharedPlaces(PackTable(opened), entry.sha256), packs_per_shard=packs_per_shard)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, pack_id: int) -> PackPlace:
        if not 0 <= pack_id < len(self):
            raise IndexError(f"pack {pack_id} of {len(self)}")
        offset, size, header_size, head_crc32c = self._records[pack_id].item()
        return PackPlace(
            pack_id=pack_id,
            key=sample_key(pack_id),
            shard=shard_name(pack_id // self._packs_per_shard),
            offset=offset,
            header_size=header_size,
            head_crc32c=head_crc32c,
            size=size,
        )

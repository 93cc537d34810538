"""Where every pack of a dataset lies."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pyarrow as pa

from schemas.manifest import SHARDS


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
    """Every pack's place, by ``pack_id``. Columns, not objects, as every worker of every rank holds them."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.select([field.name for field in fields(PackPlace)]).combine_chunks()

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, pack_id: int) -> PackPlace:
        return PackPlace(**{name: self._table[name][pack_id].as_py() for name in self._table.column_names})

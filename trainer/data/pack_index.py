"""Place of every pack of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64, Shaped

from preshard.schemas.dataset.rows import PACK_COLUMNS
from preshard.schemas.dataset.table import NumberTable, row_group_edges
from preshard.schemas.manifest import SHARDS
from preshard.schemas.members import sample_key, shard_name

PACKS_TABLE = "packs.parquet"

RECORD = np.dtype([("offset", "<i8"), ("size", "<i8"), ("header_size", "<u4"), ("head_crc32c", "<u4")])
"""Fields that cannot be told from a pack's number, as its key and its shard's name can."""

Records = Shaped[np.ndarray, "packs"]
"""An array of :data:`RECORD`, by ``pack_id``."""

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
        """The sample's name in errors."""
        return f"{SHARDS}/{self.shard}, sample {self.key}"


class PackIndex:
    """Every pack's place, by ``pack_id``: a small table as an array, a large one in a file that processes share.

    Args:
        records: what ``packs.parquet`` says of each pack: :data:`Records`, or what gives one at a time.
        packs_per_shard: packs of every shard but the last.
    """

    def __init__(self, records: Any, *, packs_per_shard: int) -> None:
        self._records, self._packs_per_shard = records, packs_per_shard

    @classmethod
    def of_bytes(cls, data: bytes, rows: int | None = None, *, packs_per_shard: int) -> PackIndex:
        """The index of a table that was read whole, of so many rows where the manifest gives them.

        Raises:
            TableInvalid: it is not Parquet with the format's columns.
        """
        table = PackTable(partial(pa.BufferReader, data), rows)
        parts = [table.read(group) for group in range(len(table.edges) - 1)]
        return cls(np.concatenate([np.empty(0, RECORD), *parts]), packs_per_shard=packs_per_shard)

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


class PackTable:
    """The rows of ``packs.parquet`` by row group.

    It can be pickled; the copy opens the file again when it reads.

    Args:
        opened: opens the file. To be pickled, it must be a function that can be.
        rows: that the manifest gives; None for any number.
        sparing: whether reading takes little memory and no threads, rather than few requests to a store.

    Raises:
        TableInvalid: it is not Parquet with the format's columns and so many rows.
    """

    def __init__(self, opened: Callable[[], Any], rows: int | None = None, *, sparing: bool = True) -> None:
        self._opened, self._rows, self._sparing = opened, rows, sparing
        self._file: NumberTable | None = None
        self.edges: list[int] = row_group_edges(self._table().metadata).tolist()
        """Row group g has the packs from ``edges[g]`` to ``edges[g + 1] - 1``."""

    def __len__(self) -> int:
        """Number of packs."""
        return self.edges[-1]

    def read(self, group: int) -> Records:
        """The rows of a row group.

        Raises:
            TableInvalid: the row group cannot be decoded, or a value is null or cannot be a size or a place.
        """
        records = np.empty(self.edges[group + 1] - self.edges[group], RECORD)
        names = list(RECORD.names or ())
        for name, numbers in zip(names, self.columns(group, names), strict=True):
            records[name] = numbers
        pa.default_memory_pool().release_unused()  # a worker reads few row groups, and then none for long
        return records

    def columns(self, group: int, names: Sequence[str]) -> Int64[np.ndarray, "columns packs"]:
        """Other columns of a row group, of whole numbers.

        Raises:
            TableInvalid: as :meth:`read`.
        """
        table = self._table().read([group], names)
        # pyarrow's own conversion would import pandas where it is installed, 40 MB in every process.
        return np.stack([np.concatenate([np.empty(0, np.int64), *map(_numbers, table[name].chunks)]) for name in names])

    def close(self) -> None:
        """Closes the file. Reading opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _table(self) -> NumberTable:
        if self._file is None:
            kept: Any = {"rows": self._rows, "sparing": self._sparing}
            self._file = NumberTable(self._opened(), PACKS_TABLE, PACK_COLUMNS, **kept)
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


def _numbers(chunk: pa.Array) -> Int64[np.ndarray, "packs"]:
    return np.frombuffer(chunk.buffers()[1], "<i8")[chunk.offset :][: len(chunk)]

"""The shards that a manifest lists, without a record for each in memory: a million packs have tens of thousands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from jaxtyping import Int64

from preshard.packer_service.report.tables import numbers_of
from preshard.schemas.dataset.manifest_parts import decode_entries
from preshard.schemas.errors import ManifestInvalid
from preshard.schemas.manifest import MANIFEST, ShardEntry
from preshard.schemas.members import shard_name

_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
        ("packs", pa.int64()),
        ("first_pack", pa.int64()),
    ]
)


class ShardList:
    """The shards of a dataset in order.

    Attributes:
        bytes: of each.
        packs: of each.
        first_packs: the first pack of each.
        hashes: the SHA-256 of each, in hexadecimal digits.
    """

    def __init__(self, numbers: Int64[np.ndarray, "three shards"], hashes: pa.StringArray) -> None:
        self.bytes, self.packs, self.first_packs = numbers
        self.hashes = hashes

    @classmethod
    def of(cls, table: pa.Table) -> ShardList:
        """The shards of a table that :func:`check_shards` has checked."""
        numbers = [numbers_of(table[name]) for name in ("bytes", "packs", "first_pack")]
        return cls(np.array(numbers, np.int64).reshape(3, -1), table["sha256"].combine_chunks())

    def _hash(self, number: int) -> str:
        return str(self.hashes[number].as_py())

    def __len__(self) -> int:
        return len(self.bytes)

    def __iter__(self) -> Iterator[ShardEntry]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> ShardEntry:
        return ShardEntry(
            name=shard_name(number),
            bytes=int(self.bytes[number]),
            sha256=self._hash(number),
            packs=int(self.packs[number]),
            first_pack=int(self.first_packs[number]),
        )

    def find(self, name: str) -> ShardEntry | None:
        """The shard of a name; None where there is none."""
        digits = "".join(letter for letter in name if letter in "0123456789")
        if not digits or len(digits) > len(str(len(self))) + len(shard_name(0)):
            return None
        number = int(digits)
        return self[number] if number < len(self) and shard_name(number) == name else None


def read_entries(entries: bytes, where: str) -> pa.Table:
    """The entries of shards in a manifest as a table.

    Raises:
        ManifestInvalid: they are not legal.
    """
    table = _fast(entries)
    if table is None:
        table = pa.Table.from_pylist([entry.model_dump() for entry in decode_entries(entries, where)], _SCHEMA)
    return table


def _fast(entries: bytes) -> pa.Table | None:
    """The entries as the packer writes them, in a tenth of the time; None where they are written otherwise."""
    if not entries:
        return _SCHEMA.empty_table()
    lines = entries.replace(b"},{", b"}\n{")
    parsing = pa.json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="error")
    try:
        table = pa.json.read_json(pa.BufferReader(lines), pa.json.ReadOptions(use_threads=False), parsing)
    except (pa.ArrowException, MemoryError):
        return None
    if table.schema != _SCHEMA or any(column.null_count for column in table.columns):
        return None
    least = min(pc.min(table[name]).as_py() for name in ("bytes", "packs", "first_pack"))
    return table if len(table) and least >= 0 else None


def check_shards(table: pa.Table, each: int, n_packs: int) -> ShardList:
    """The shards of a table, which are named in order, follow each other without a gap, and are full but for the last.

    Raises:
        ManifestInvalid: they are not.
    """
    shards = ShardList.of(table)
    numbers = np.arange(len(shards), dtype=np.int64)
    # more than the packs are only in a manifest that lies, and such a product need not fit
    first = numbers * min(each, n_packs)
    misnamed = np.fromiter(map(str.__ne__, table["name"].to_pylist(), map(shard_name, range(len(shards)))), bool)
    for wrong in np.flatnonzero(misnamed | (shards.first_packs != first)).tolist()[:1]:
        reason = f"{table['name'][wrong].as_py()!r:.80} from pack {shards.first_packs[wrong]}"
        raise ManifestInvalid(MANIFEST, f"shards[{wrong}] is {reason}")
    for wrong in np.flatnonzero(shards.packs != np.minimum(each, n_packs - first)).tolist()[:1]:
        reason = f"has {shards.packs[wrong]} packs; packs_per_shard is {each}"
        raise ManifestInvalid(MANIFEST, f"shards[{wrong}] {reason}")
    held = int(shards.packs.sum())
    if held != n_packs:
        raise ManifestInvalid(MANIFEST, f"counts.packs is {n_packs}; the shards hold {held}")
    return shards

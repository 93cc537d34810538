"""The record of a written shard: its entry of the manifest and its rows of every table, in one file.

A line of JSON comes first, with the hash of what follows: one Arrow stream for each table. The records of
:data:`GROUP` shards lie in one folder, so that no listing grows with the dataset.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from preshard.schemas.codec import encode_json, shard_name
from preshard.schemas.manifest import SHARDS, Natural, Sha256, ShardEntry
from preshard.schemas.tables import TABLES

GROUP = 256
"""Shards whose records lie in one folder and are joined by one task."""

COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


class RecordHead(BaseModel):
    """The first line of a record. Behind it lie streams of those ``sizes``, and ``sha256`` is their hash."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    entry: ShardEntry
    seconds: float
    sizes: list[Natural]
    sha256: Sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRecord:
    """What is on record of a written shard, and the seconds that writing it took."""

    entry: ShardEntry
    seconds: float
    tables: Mapping[str, pa.Table]


def group_folder(group: int) -> str:
    """Folder of a group's records, in the work folder."""
    return f"{SHARDS}/{group:06d}"


def record_name(shard: int) -> str:
    """The file of a shard's record, in the work folder."""
    return f"{group_folder(shard // GROUP)}/{shard_name(shard)}.record"


def encode_record(record: ShardRecord) -> bytes:
    """The bytes of a record."""
    streams = [_stream(record.tables[name].cast(schema)) for name, schema in TABLES.items()]
    rows = b"".join(streams)
    head = RecordHead(
        entry=record.entry,
        seconds=record.seconds,
        sizes=[len(stream) for stream in streams],
        sha256=hashlib.sha256(rows).hexdigest(),
    )
    return encode_json(head) + b"\n" + rows


def _stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=COMPRESSED) as to:
        to.write_table(table.unify_dictionaries())
    return sink.getvalue()


def decode_record(data: bytes) -> ShardRecord:
    """Reads a record again. A table's rows are decoded when it is asked for, and not kept.

    Raises:
        ValueError: it is damaged.
    """
    line, _, rows = data.partition(b"\n")
    head = RecordHead.model_validate_json(line)
    if hashlib.sha256(rows).hexdigest() != head.sha256:
        raise ValueError("its bytes do not match its hash")
    if len(head.sizes) != len(TABLES):
        raise ValueError(f"it has {len(head.sizes)} tables")
    ends = list(accumulate(head.sizes))
    streams = [memoryview(rows)[end - size : end] for end, size in zip(ends, head.sizes, strict=True)]
    tables = StoredTables(dict(zip(TABLES, streams, strict=True)))
    return ShardRecord(entry=head.entry, seconds=head.seconds, tables=tables)


class StoredTables(Mapping[str, pa.Table]):
    """The tables of a record, compressed as they were stored: those of many records fit into memory."""

    def __init__(self, streams: Mapping[str, memoryview]) -> None:
        self._streams = streams

    def __getitem__(self, name: str) -> pa.Table:
        return pa.ipc.open_stream(pa.py_buffer(self._streams[name])).read_all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

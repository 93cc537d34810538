"""The record of a written shard: its entry of the manifest and its rows of every table, in one file.

A line of JSON comes first, with the hash of what follows: one Arrow stream for each table. The records of
:data:`GROUP` shards lie in one folder, so that no listing grows with the dataset.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from schemas.codec import encode_json, shard_name
from schemas.manifest import SHARDS, Sha256, ShardEntry
from schemas.tables import TABLES

GROUP = 256
"""Shards whose records lie in one folder and are joined by one task."""

COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


class RecordHead(BaseModel):
    """The first line of a record. ``sha256`` is the hash of all bytes behind that line."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    entry: ShardEntry
    seconds: float
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
    streams = io.BytesIO()
    for name, schema in TABLES.items():
        with pa.ipc.new_stream(streams, schema, options=COMPRESSED) as to:
            to.write_table(record.tables[name].cast(schema).unify_dictionaries())
    rows = streams.getvalue()
    head = RecordHead(entry=record.entry, seconds=record.seconds, sha256=hashlib.sha256(rows).hexdigest())
    return encode_json(head) + b"\n" + rows


def decode_record(data: bytes) -> ShardRecord:
    """Reads a record again.

    Raises:
        ValueError: it is damaged.
    """
    line, _, rows = data.partition(b"\n")
    head = RecordHead.model_validate_json(line)
    if hashlib.sha256(rows).hexdigest() != head.sha256:
        raise ValueError("its bytes do not match its hash")
    source = pa.BufferReader(rows)
    tables = {name: pa.ipc.open_stream(source).read_all() for name in TABLES}
    return ShardRecord(entry=head.entry, seconds=head.seconds, tables=tables)

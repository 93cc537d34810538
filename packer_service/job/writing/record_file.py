"""The record of a written shard: its entry of the manifest and its rows of every table, in one file.

A line of JSON comes first, with the hash of what follows: one Arrow stream for each table. The records of
:data:`GROUP` shards lie in one folder, so that no listing grows with the dataset. Before the job finishes, they are
joined into a few files, so that finishing reads none per shard.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import damaged
from preshard.schemas.codec import encode_json, shard_name
from preshard.schemas.manifest import SHARDS, WORK, Natural, Sha256, ShardEntry
from preshard.schemas.tables import TABLES

ENTRIES = "entries.jsonl"
"""The group's entries of the manifest, one per line."""

READERS = 8
"""Records that are read at the same time: in an object store each takes a request."""

BATCH_ROWS = 65_536
"""Most rows of a joined table that are in memory at once when it is read again."""


def joined_name(group: int, table: str) -> str:
    """The file of a group's rows of a table, in the work folder."""
    return f"{group_folder(group)}/joined/{table}"


def join_group(group: int, n_shards: int, out: str) -> float:
    """Runs in a task: joins the records of one group, and returns the seconds that writing its shards took.

    Args:
        group: its number.
        n_shards: shards of the whole dataset.
        out: the dataset.

    Raises:
        WorkError: a record is damaged.
    """
    work = Folder(out) / WORK
    numbers = range(group * GROUP, min((group + 1) * GROUP, n_shards))
    with ThreadPoolExecutor(max_workers=READERS) as readers:
        records = list(readers.map(lambda number: read_record(work, number), numbers))
    for name in TABLES:
        schema = records[0].tables[name].schema  # with the columns that documents keep
        with (
            work.writer(joined_name(group, name)) as sink,
            pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema, options=COMPRESSED) as to,
        ):
            for table in in_batches((record.tables[name] for record in records), BATCH_ROWS):
                to.write_table(table)
    entries = b"".join(encode_json(record.entry) + b"\n" for record in records)
    work.write(joined_name(group, ENTRIES), entries)
    return sum(record.seconds for record in records)


def read_record(work: Folder, shard: int) -> ShardRecord:
    """Reads the record of a shard that an earlier task, or run, has written.

    Raises:
        FileNotFoundError: there is none.
        WorkError: it is damaged.
    """
    name = record_name(shard)
    try:
        return decode_record(work.read(name))
    except (pa.ArrowException, ValueError) as error:
        raise damaged(work, name, error) from None


def joined_rows(work: Folder, groups: Sequence[int], table: str) -> Iterator[pa.Table]:
    """The rows of a table in order of the shards, some thousand at a time."""
    for group in groups:
        with work.stream(joined_name(group, table)) as file, pa.ipc.open_stream(file) as batches:
            for batch in batches:
                yield pa.Table.from_batches([batch])


def joined_entries(work: Folder, groups: Sequence[int]) -> Iterator[bytes]:
    """The entries of all shards, in order, as the manifest holds them."""
    for group in groups:
        yield from work.read(joined_name(group, ENTRIES)).splitlines()


def in_batches(parts: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of so many rows each, the last of fewer."""
    waiting, have = list[pa.Table](), 0
    for part in parts:
        waiting.append(part)
        have += len(part)
        if have < rows:
            continue
        joined = pa.concat_tables(waiting).unify_dictionaries()
        for start in range(0, have - rows + 1, rows):
            yield joined.slice(start, rows).combine_chunks()
        rest = have % rows
        waiting, have = [joined.slice(have - rest)], rest
    if have:
        yield pa.concat_tables(waiting).unify_dictionaries().combine_chunks()


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
    streams = [_stream(record.tables[name]) for name in TABLES]
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

"""The record of a written shard: its entry of the manifest and its rows of every table, in one file.

Tasks keep their own results, so that a result outlives the driver, and no pixels pass through it. Every file is written
whole or not at all, and a shard's record after the shard: what is there is done.

In a record a line of JSON comes first, with the hash of what follows: one Arrow stream for each table. The records of
:data:`GROUP` shards lie in one folder, so that no listing grows with the dataset. Before the job finishes, they are
joined into a few files, so that finishing reads none per shard.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from preshard.packer_service.ingest.model import PackedFor
from preshard.packer_service.ingest.source.file import SourceFile
from preshard.packer_service.job.plan import PLAN_FOLDER, PlannedShardRef
from preshard.packer_service.job.planning.measured import count_by_code
from preshard.packer_service.job.writing.read import read_shard
from preshard.packer_service.job.writing.write import build_shard
from preshard.packer_service.runtime.executors import TaskCounts
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import damaged, in_batches
from preshard.schemas.config import PackConfig
from preshard.schemas.encode import TAR_END, encode_index, encode_json
from preshard.schemas.manifest import SHARDS, WORK, Natural, Sha256, ShardEntry
from preshard.schemas.members import shard_name
from preshard.schemas.tables import TABLES

GROUP = 256
"""Shards whose records lie in one folder and are joined by one task."""

COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")

ENTRIES = "entries.jsonl"
"""The group's entries of the manifest, one per line."""

READERS = 8
"""Records that are read at the same time: in an object store each takes a request."""

BATCH_ROWS = 65_536
"""Most rows of a joined table that are in memory at once when it is read again."""


def build_and_keep(
    shard: PlannedShardRef,
    files: Sequence[SourceFile],
    sources: Sequence[str],
    config: PackConfig,
    target: PackedFor,
    out: str,
) -> TaskCounts:
    """Runs in a task: writes the shard, then the record that says it is there, with its rows of the tables."""
    started = time.monotonic()
    folder = Folder(out)
    packs = read_shard(shard, folder / WORK / PLAN_FOLDER, files, sources)
    entry, tables = build_shard(shard, packs, config, target, folder / SHARDS)
    record = ShardRecord(entry=entry, seconds=round(time.monotonic() - started, 3), tables=tables)
    (folder / WORK).write(record_name(shard.first_pack // config.packs_per_shard), encode_record(record))
    amounts = {
        "documents": len(tables["documents.parquet"]),
        "rejected": len(tables["rejects.parquet"]),
        "crops": pc.sum(tables["packs.parquet"]["n_images"]).as_py() or 0,
        "bytes": entry.bytes,
    }
    return TaskCounts(amounts=amounts, rejects=count_by_code(tables["rejects.parquet"]))


def find_kept(numbers: Sequence[int], out: str) -> tuple[int, list[int]]:
    """Number of those of some shards that have a record, and the list of those that are, byte for byte, what it says.
    Runs in tasks.
    """
    folder = Folder(out)
    found = [(number, _is_kept(folder, number)) for number in numbers]
    return sum(kept is not None for _, kept in found), [number for number, kept in found if kept]


def _is_kept(folder: Folder, number: int) -> bool | None:
    """Whether a shard and its index are what the record says; None where there is no record."""
    shards = folder / SHARDS
    try:
        record = decode_record((folder / WORK).read(record_name(number)))
    except FileNotFoundError:
        return None
    except (pa.ArrowException, ValueError):
        return False
    try:
        return _is_as_recorded(shards, record)
    except FileNotFoundError:
        return False


def _is_as_recorded(shards: Folder, record: ShardRecord) -> bool:
    entry = record.entry
    if shards.size(entry.name) != entry.bytes:
        return False
    offsets = record.tables["packs.parquet"]["offset"].to_pylist()
    if shards.read(f"{entry.name}.idx") != encode_index(np.array([*offsets, entry.bytes - len(TAR_END)], np.uint64)):
        return False
    with shards.stream(entry.name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


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


class RecordHead(BaseModel):
    """The first line of a record. Behind it lie streams of those ``sizes``, and ``sha256`` is their hash."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    entry: ShardEntry
    seconds: float
    sizes: list[Natural]
    sha256: Sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRecord:
    """Record of a written shard, and the seconds that writing it took."""

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

"""What writing keeps in a job's work folder: the record of each shard, and what a later run may rely on.

Tasks keep their own results, so that a result outlives the driver, and no pixels pass through it. Every file is written
whole or not at all, and a shard's record after the shard: what is there is done.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.ingest.model import PackedFor
from preshard.packer_service.ingest.source.file import SourceFile
from preshard.packer_service.job.plan import PLAN_FOLDER, PlannedShardRef
from preshard.packer_service.job.planning.measured import count_by_code
from preshard.packer_service.job.writing.read import read_shard
from preshard.packer_service.job.writing.record_file import ShardRecord, decode_record, encode_record, record_name
from preshard.packer_service.job.writing.write import BuiltShard, build_shard
from preshard.packer_service.runtime.executors import TaskCounts
from preshard.packer_service.shards.store import Folder
from preshard.schemas.codec import TAR_END, encode_index
from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import SHARDS, WORK, ShardEntry


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
    built = build_shard(shard, packs, config, target, folder / SHARDS)
    seconds = round(time.monotonic() - started, 3)
    record = ShardRecord(entry=_entry(built), seconds=seconds, tables=built.tables)
    (folder / WORK).write(record_name(shard.first_pack // config.packs_per_shard), encode_record(record))
    return TaskCounts(amounts=_amounts(built), rejects=count_by_code(built.tables["rejects.parquet"]))


def _entry(built: BuiltShard) -> ShardEntry:
    return ShardEntry(
        name=built.name,
        bytes=built.size,
        sha256=built.sha256,
        packs=len(built.tables["packs.parquet"]),
        first_pack=built.first_pack,
    )


def _amounts(built: BuiltShard) -> Counter[str]:
    return Counter(
        documents=len(built.tables["documents.parquet"]),
        rejected=len(built.tables["rejects.parquet"]),
        crops=pc.sum(built.tables["packs.parquet"]["n_images"]).as_py() or 0,
        bytes=built.size,
    )


def find_kept(numbers: Sequence[int], out: str) -> tuple[int, list[int]]:
    """How many of some shards have a record, and which of those are, byte for byte, what it says. Runs in tasks."""
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

"""What writing keeps in a job's work folder: the record of each shard, and what a later run may rely on.

Tasks keep their own results, so that a result outlives the driver, and no pixels pass through it. Every file is written
whole or not at all, and a shard's record after the shard: what is there is done.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from packer_service.ingest.model import PackedFor
from packer_service.ingest.source.file import SourceFile
from packer_service.job.measured import count_by_code
from packer_service.job.plan import PlannedShardRef, read_shard
from packer_service.job.segments import PLAN_FOLDER
from packer_service.job.write import BuiltShard, build_shard
from packer_service.runtime.executors import TaskCounts
from packer_service.shards.store import Folder
from schemas.codec import TAR_END, encode_index, encode_json, encode_table
from schemas.config import PackConfig
from schemas.manifest import SHARDS, WORK, ShardEntry

RECORD = "entry.json"
"""The last file of a shard's record to be written."""


class ShardRecord(BaseModel):
    """The last part of a shard's record, next to its rows of the tables."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    entry: ShardEntry
    seconds: float


def build_and_keep(
    shard: PlannedShardRef,
    files: Sequence[SourceFile],
    sources: Sequence[str],
    config: PackConfig,
    target: PackedFor,
    out: str,
) -> TaskCounts:
    """Runs in a task: writes the shard, then its rows of the tables, then the record that says all of it is there."""
    started = time.monotonic()
    folder = Folder(out)
    task = read_shard(shard, folder / WORK / PLAN_FOLDER, files, sources)
    built = build_shard(task, config, target, folder / SHARDS)
    record = folder / WORK / SHARDS / built.name
    for name, table in built.tables.items():
        record.write(name, encode_table(table))
    kept = ShardRecord(entry=_entry(built), seconds=round(time.monotonic() - started, 3))
    record.write(RECORD, encode_json(kept))
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


def read_record(records: Folder, name: str) -> ShardRecord:
    return ShardRecord.model_validate_json(records.read(f"{name}/{RECORD}"))


def is_kept(name: str, out: str) -> bool:
    """Whether a shard and its index are, byte for byte, what their record says. Runs in tasks where there are many."""
    folder = Folder(out)
    shards, records = folder / SHARDS, folder / WORK / SHARDS
    try:
        entry = read_record(records, name).entry
        if shards.size(name) != entry.bytes:
            return False
        packs = pq.read_table(io.BytesIO(records.read(f"{name}/packs.parquet")), columns=["offset"])
        index = encode_index(np.array([*packs["offset"].to_pylist(), entry.bytes - len(TAR_END)], np.uint64))
        if shards.read(f"{name}.idx") != index:
            return False
        with shards.open(name) as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    except (FileNotFoundError, pa.ArrowException, ValueError):
        return False

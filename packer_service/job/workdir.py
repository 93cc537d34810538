"""What a job keeps in its work folder as it runs, and what a later run of it may rely on.

Tasks keep their own results, so that a result outlives the driver, and neither pixels nor lengths pass through it.
Every file is written whole or not at all, and a shard's record after the shard: what is there is done.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from packer_service.ingest.model import PackedFor
from packer_service.ingest.source.containers.compressed import keep_copy, spooled
from packer_service.ingest.source.file import Fragment
from packer_service.job.measure import Measured, measure_fragment
from packer_service.job.plan import PlannedShard
from packer_service.job.write import BuiltShard, build_shard
from packer_service.runtime.executors import TaskCounts
from packer_service.shards.store import Folder
from schemas.codec import TAR_END, encode_index, encode_json, encode_table
from schemas.config import PackConfig
from schemas.errors import PreshardError
from schemas.filesystem import split_query
from schemas.manifest import SHARDS, WORK, ShardEntry

MEASURED_FOLDER = "measured"
COPIES = "copies"
"""Folder of the copies of compressed files that can be read at any position."""
RECORD = "entry.json"
"""The last file of a shard's record to be written."""


class WorkError(PreshardError):
    """A file of the work folder cannot be read again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredFragment:
    """What measuring a fragment gave, and the seconds that it took."""

    measured: Measured
    seconds: float


def measured_name(index: int) -> str:
    return f"{MEASURED_FOLDER}/{index:08d}.parquet"


def measure_and_keep(item: tuple[int, Fragment], config: PackConfig, work: str) -> TaskCounts:
    """Runs in a task: measures a fragment and keeps its table under the fragment's number.

    Of a compressed file it keeps a copy first that can be read at any position, as the file itself cannot.
    """
    index, fragment = item
    started = time.monotonic()
    if fragment.file.copy is not None:
        path, query = split_query(fragment.file.copy)
        folder, _, name = path.rpartition("/")
        with Folder(folder + query).writer(name) as sink:
            keep_copy(spooled(fragment.file), sink)
    found = measure_fragment(fragment, config)
    facts = {
        "n_lines": str(found.n_lines),
        "unused": json.dumps(found.unused),
        "seconds": f"{time.monotonic() - started:.3f}",
    }
    Folder(work).write(measured_name(index), encode_table(found.table.replace_schema_metadata(facts)))
    return TaskCounts(amounts=count_rows(found.table), rejects=_by_code(found.table))


def count_rows(measured: pa.Table) -> Counter[str]:
    """Number of documents and of rejected documents in a table of ``measure.MEASURED``."""
    rejected = len(measured) - measured["code"].null_count
    return Counter(documents=pc.sum(pc.equal(measured["piece"], 0)).as_py() or 0, rejected=rejected)


def _by_code(table: pa.Table) -> dict[str, int]:
    """Number of rejected documents by their code."""
    counts = table["code"].drop_null().value_counts().to_pylist()
    return {count["values"]: count["counts"] for count in counts}


def read_measured(work: Folder, index: int) -> MeasuredFragment:
    """Reads back a fragment that was measured.

    Raises:
        WorkError: its file is damaged.
    """
    name = measured_name(index)
    try:
        table = pq.read_table(io.BytesIO(work.read(name)))
        facts = table.schema.metadata
        return MeasuredFragment(
            measured=Measured(
                table.replace_schema_metadata(None), int(facts[b"n_lines"]), json.loads(facts[b"unused"])
            ),
            seconds=float(facts[b"seconds"]),
        )
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise WorkError(f"{work.path(name)}: is damaged ({reason}); remove it and run the same command again") from None


class ShardRecord(BaseModel):
    """The last part of a shard's record, next to its rows of the tables."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    entry: ShardEntry
    seconds: float


def build_and_keep(task: PlannedShard, config: PackConfig, target: PackedFor, out: str) -> TaskCounts:
    """Runs in a task: writes the shard, then its rows of the tables, then the record that says all of it is there."""
    started = time.monotonic()
    folder = Folder(out)
    built = build_shard(task, config, target, folder / SHARDS)
    record = folder / WORK / SHARDS / built.name
    for name, table in built.tables.items():
        record.write(name, encode_table(table))
    kept = ShardRecord(entry=_entry(built), seconds=round(time.monotonic() - started, 3))
    record.write(RECORD, encode_json(kept))
    return TaskCounts(amounts=_amounts(built), rejects=_by_code(built.tables["rejects.parquet"]))


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

"""Records of a plan's shards as the tasks that write shards keep them, made from the plan alone: no shard is written.

What a record says of bytes, loads and costs is made up; ids, sources, places and lengths are the plan's. From the
records the job itself makes the tables and the manifest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from preshard.packer_service.ingest.packed.settings import packed_target
from preshard.packer_service.job.finish import finish
from preshard.packer_service.job.plan import PLAN_FOLDER, Planned, PlannedShardRef, segment_batches
from preshard.packer_service.job.writing.records import ShardRecord, encode_record, record_name
from preshard.packer_service.plan.cost import CostModel
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import WORK, ShardEntry
from preshard.schemas.members import sample_key
from preshard.schemas.tables import DOCUMENTS, PACKS, REJECTS
from tests.support.made_records import made_measures

PER_TASK = 32
"""Shards of a task: a task of one would be over before the next one is given out."""

FEW_LOADS = PackConfig(packs_per_shard=256, layouts=("contiguous",), ring_degrees=(1,), cp_sizes=(1,))
"""Two rows of measures for each pack, where the default configuration has twenty: they are not what is measured."""


def write_tables(
    out: Path, planned: Planned, executor: Any, config: PackConfig, progress: Any
) -> tuple[dict[str, float], dict[str, int]]:
    """Makes all records, and finishes; returns the seconds of each step, and the bytes of each table and the manifest.

    Args:
        out: the dataset; its work folder holds the plan.
        planned: the plan.
        executor: runs tasks.
        config: what the dataset says that it was packed with.
        progress: hears what is done.
    """
    began = time.perf_counter()
    shards = planned.shards(config.packs_per_shard)
    items = [range(first, min(first + PER_TASK, len(shards))) for first in range(0, len(shards), PER_TASK)]
    task = partial(keep_records, planned=planned, config=config, out=str(out))
    for _ in executor.run(task, items):
        pass
    made = time.perf_counter()
    target = packed_target(config, [])
    finish(
        Folder(str(out)),
        planned,
        n_shards=len(shards),
        config=config,
        target=target,
        unread={},
        carried=[],
        executor=executor,
        progress=progress,
    ).write_manifest(Folder(str(out)))
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}
    return {"records": made - began, "tables": time.perf_counter() - made}, sizes


def keep_records(numbers: range, planned: Planned, config: PackConfig, out: str) -> None:
    """Runs in a task: keeps the records of some shards."""
    shards, work = planned.shards(config.packs_per_shard), Folder(out) / WORK
    for number in numbers:
        record = made_record(shards[number], work / PLAN_FOLDER, planned.sources, config)
        work.write(record_name(number), encode_record(record))


def made_record(shard: PlannedShardRef, plan: Folder, sources: Sequence[str], config: PackConfig) -> ShardRecord:
    """Record of a shard."""
    tables, first = [], shard.first_pack
    for part in shard.parts:
        for table in segment_batches(plan, part):
            pack = table["pack"].cast(pa.int64()).to_numpy() + (first - part.first)
            tables.append(table.drop_columns(["pack"]).append_column("pack_id", pa.array(pack)))
        first += part.end - part.first
    rows = pa.concat_tables(tables, promote_options="permissive")
    packs = np.arange(shard.first_pack, shard.first_pack + shard.n_packs)
    return ShardRecord(
        entry=ShardEntry(
            name=shard.name, bytes=2048, sha256="0" * 64, packs=shard.n_packs, first_pack=shard.first_pack
        ),
        seconds=0.0,
        tables={
            "packs.parquet": _packs(packs, rows, shard.name, config),
            "documents.parquet": _documents(rows, sources, config),
            "rejects.parquet": REJECTS.empty_table(),
            "measures.parquet": made_measures(packs, config),
        },
    )


def _documents(rows: pa.Table, sources: Sequence[str], config: PackConfig) -> pa.Table:
    images = rows["images"].cast(pa.int64()).to_numpy()
    columns: dict[str, Any] = {name: rows[name] for name in rows.column_names if name in DOCUMENTS.names}
    columns |= {
        "source": pa.array(sources).take(rows["source_number"]),
        "n_units": images,
        "n_images": images,
        "n_patches": rows["patches"],
        "load": images * CostModel.of(config).vision_work_per_crop,
        "truncated_tokens": rows["truncated"],
    }
    return pa.table({name: columns[name] for name in DOCUMENTS.names}).cast(DOCUMENTS)


def _packs(packs: np.ndarray, rows: pa.Table, shard: str, config: PackConfig) -> pa.Table:
    of = rows["pack_id"].to_numpy() - packs[0]

    def summed(name: str) -> np.ndarray:
        values = rows[name].cast(pa.int64()).to_numpy()
        return np.bincount(of, weights=values, minlength=len(packs)).astype(np.int64)

    tokens, place = summed("length"), packs - packs[0]
    columns: dict[str, Any] = {name: np.zeros(len(packs), np.int64) for name in PACKS.names}
    columns |= {
        "pack_id": packs,
        "key": [sample_key(number) for number in packs.tolist()],
        "shard": [shard] * len(packs),
        "index_in_shard": place,
        "offset": place * 512,
        "n_tokens": tokens,
        "n_padding": config.seq_len - tokens,
        "n_images": summed("images"),
        "n_patches": summed("patches"),
        "attention_tiles": 1000 + packs * 7919 % 997,
        "cost": 100 + packs * 7919 % 997 / 1e4,
    }
    return pa.table(columns, schema=PACKS)

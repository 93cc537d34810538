"""One partition of all documents, planned by itself: a range of hashes, so a random sample of the documents.

What two documents of one partition have to do with each other is settled here: rows of one id meet, and so do ``x`` and
``x#2``, since partitions are ranges of the hash of the id without its number. They follow from the source and the
configuration alone, never from the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.job.runs import RUNS, read_range
from preshard.packer_service.job.segments import (
    PLACES,
    PLAN_FOLDER,
    SegmentFacts,
    segment_name,
    write_costs,
    write_segment,
)
from preshard.packer_service.job.survey import Survey, survey
from preshard.packer_service.plan.make import Plan, plan_documents
from preshard.packer_service.plan.order import whole_groups
from preshard.packer_service.report.limits import fill_limit
from preshard.packer_service.report.mixture import MixtureTotals, take_mixture
from preshard.packer_service.runtime.executors import TaskCounts
from preshard.packer_service.runtime.scratch import give_back_memory
from preshard.packer_service.shards.store import Folder
from preshard.schemas.codec import encode_table
from preshard.schemas.config import PackConfig

PARTITION_ROWS = 1_000_000
"""Documents of a partition, each as often as it is taken: of far fewer, packs are less full and steps less even."""

REFERENCE = ("doc_id", "source_number", "file", "line", "offset", "size", "piece", "copy_number", "epoch", "truncated")
"""Columns of a document in a segment beside its place, as far as they are known; ``images`` and ``patches`` follow."""


class Partition(NamedTuple):
    """One of several equal ranges of the 64-bit hash."""

    number: int
    of: int

    @property
    def low(self) -> int:
        return self.number * 2**64 // self.of

    @property
    def high(self) -> int:
        return (self.number + 1) * 2**64 // self.of


def count_partitions(by_source: Mapping[str, int], config: PackConfig, rows_each: int) -> int:
    """How many partitions there are.

    Args:
        by_source: rows of each source that can be packed.
        config: its mixture and epochs say how often each is taken.
        rows_each: rows of a partition.
    """
    weights = dict(config.mixture)
    taken = math.fsum(count * weights.get(name, 1.0) for name, count in sorted(by_source.items())) * config.epochs
    return max(1, math.ceil(taken / rows_each))


def plan_partition(
    part: Partition,
    runs: Sequence[str],
    sources: Sequence[str],
    labels: Sequence[str],
    config: PackConfig,
    work: str,
    *,
    unique: bool = True,
) -> TaskCounts:
    """Runs in a task: plans the documents of a partition, and keeps the plan as a segment.

    Args:
        part: the partition.
        runs: names of all runs.
        sources: names of all sources, sorted.
        labels: labels of the source's files.
        config: the configuration of the job.
        work: the work folder.
        unique: whether rows of one id get numbers, and equal ones are rejected.
    """
    folder = Folder(work)
    found = survey([read_range(folder / RUNS, run, part.low, part.high) for run in runs], labels, unique=unique)
    documents, totals = take_mixture(found.documents, config, sources)
    give_back_memory()  # joining and sorting takes columns in Arrow, planning takes arrays
    plan = plan_documents(documents, config, part.number)
    give_back_memory()
    _keep(folder / PLAN_FOLDER, part, replace(found, documents=documents), plan, totals, sources, config)
    counts = TaskCounts(amounts={"documents": plan.n_documents, "packs": plan.n_packs})
    del found, documents, plan
    give_back_memory()  # the next partition may be planned in the same process
    return counts


def _keep(
    folder: Folder,
    part: Partition,
    found: Survey,
    plan: Plan,
    totals: MixtureTotals,
    sources: Sequence[str],
    config: PackConfig,
) -> None:
    """Writes what a later step needs of a partition; its segment last, which says that the others are there."""
    name = segment_name(part.number)
    names = [column for column in (*REFERENCE, "images", "patches") if column in found.documents.column_names]
    rows = found.documents.select(names).take(pa.array(plan.document))
    for column in PLACES:
        rows = rows.append_column(column, pa.array(getattr(plan, column)))
    groups, grouped = _groups(found.documents, plan, config.order.window)
    facts = SegmentFacts(
        n_rows=found.n_rows,
        n_documents=_count_ids(found.documents),
        n_rejected=len(found.rejects),
        n_numbered=found.n_numbered,
        n_placed=plan.n_documents,
        groups=groups,
        left=plan.n_packs - grouped,
        totals=tuple(totals),
        tokens=int(plan.length.sum()),
        aligned=int(plan.aligned_length.sum()),
        images=int(pc.sum(rows["images"].cast(pa.int64())).as_py() or 0),
        patches=int(pc.sum(rows["patches"].cast(pa.int64())).as_py() or 0),
        truncated=_truncated(rows, sources),
        limit=None if part.number else fill_limit(found.documents, config, plan.n_packs),
    )
    folder.write(f"{name}-rejects.parquet", encode_table(found.rejects))
    write_costs(folder, name, plan.cost)
    write_segment(folder, name, rows, plan.pack_edges, facts)


def _groups(documents: pa.Table, plan: Plan, window: int) -> tuple[list[int], int]:
    """Packs in whole groups by epoch, and of all epochs."""
    epochs = documents["epoch"].to_numpy()[plan.document[plan.pack_edges[:-1]]]
    groups = whole_groups(epochs, window)
    return groups.tolist(), int(groups.sum())


def _count_ids(documents: pa.Table) -> int:
    """How many different ids documents in canonical order have, however often each is taken.

    Rows of one id are neighbours in every pass, so no table of all ids is made, the largest thing in memory if it were.
    """
    once = pc.and_(pc.equal(documents["copy_number"], 0), pc.equal(documents["epoch"], 0))
    ids = documents["doc_id"].filter(once)
    changes = pc.sum(pc.not_equal(ids.slice(1), ids.slice(0, max(len(ids) - 1, 0)))).as_py() or 0
    return int(changes) + bool(len(ids))


def _truncated(rows: pa.Table, sources: Sequence[str]) -> dict[str, int]:
    lost = rows["truncated"].cast(pa.int64()).to_numpy()
    sums = np.bincount(rows["source_number"].to_numpy(), weights=lost, minlength=len(sources)).astype(np.int64)
    return {name: number for name, number in zip(sources, sums.tolist(), strict=True) if number}

"""From the table of measured documents to a plan, and from the plan to one task for each shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, overload

import pyarrow as pa

from packer_service.ingest.source.file import RowReference, SourceFile
from packer_service.job.survey import Survey
from packer_service.plan.plan import Plan
from schemas.codec import shard_name


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedDocument:
    """A reference to a document (or a piece of one) and its place in the plan: all that a task is sent of it."""

    file: SourceFile
    reference: RowReference
    location: str
    doc_id: str
    source: str
    piece: int
    copy_number: int
    epoch: int
    start: int
    length: int
    aligned_length: int
    truncated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedShard:
    """Everything that one task needs to write one shard; it holds no pixel and no text."""

    name: str
    first_pack: int
    packs: list[list[PlannedDocument]]


class ShardRange(NamedTuple):
    """The packs ``[first_pack, end_pack)`` of one shard."""

    name: str
    first_pack: int
    end_pack: int


def shard_ranges(plan: Plan, packs_per_shard: int) -> list[ShardRange]:
    """The packs of every shard of a plan."""
    firsts = range(0, plan.n_packs, packs_per_shard)
    return [ShardRange(shard_name(i), at, min(at + packs_per_shard, plan.n_packs)) for i, at in enumerate(firsts)]


def planned_shard(found: Survey, plan: Plan, shard: ShardRange) -> PlannedShard:
    """The references of one shard's documents."""
    edges = plan.pack_edges[shard.first_pack : shard.end_pack + 1]
    rows = slice(int(edges[0]), int(edges[-1]))
    placed = zip(
        found.documents.take(pa.array(plan.document[rows])).to_pylist(),
        plan.start[rows].tolist(),
        plan.length[rows].tolist(),
        plan.aligned_length[rows].tolist(),
        strict=True,
    )
    documents = [_planned(found.files[row["file"]], row, *place) for row, *place in placed]
    cuts = (edges - edges[0]).tolist()
    packs = [documents[start:end] for start, end in pairwise(cuts)]
    return PlannedShard(name=shard.name, first_pack=shard.first_pack, packs=packs)


def _planned(file: SourceFile, row: dict[str, Any], start: int, length: int, aligned_length: int) -> PlannedDocument:
    return PlannedDocument(
        file=file,
        reference=RowReference(offset=row["offset"], size=row["size"]),
        location=file.location(row["line"]),
        doc_id=row["doc_id"],
        source=row["source"],
        piece=row["piece"],
        copy_number=row["copy_number"],
        epoch=row["epoch"],
        start=start,
        length=length,
        aligned_length=aligned_length,
        truncated=row["truncated"],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedShards(Sequence[PlannedShard]):
    """The tasks of shards, each made when it is asked for: all at once would hold one object per document."""

    found: Survey
    plan: Plan
    ranges: list[ShardRange]

    def __len__(self) -> int:
        return len(self.ranges)

    @overload
    def __getitem__(self, index: int) -> PlannedShard: ...

    @overload
    def __getitem__(self, index: slice) -> PlannedShards: ...

    def __getitem__(self, index: int | slice) -> PlannedShard | PlannedShards:
        if isinstance(index, slice):
            return PlannedShards(found=self.found, plan=self.plan, ranges=self.ranges[index])
        return planned_shard(self.found, self.plan, self.ranges[index])

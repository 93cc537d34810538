"""The plan of a job: its packs in step order, which of them make up a shard, and the rows of their documents."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64
from pydantic import BaseModel, ConfigDict

from preshard.packer_service.ingest.source.file import SourceFile
from preshard.packer_service.job.planning.measured import FOLDER_FILES
from preshard.packer_service.plan.records import FillLimit, Mixture, Thinned
from preshard.packer_service.runtime.executors import MadeItems
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import KeyRange, read_facts, read_rows, write_rows
from preshard.schemas.config import MARK, PackConfig
from preshard.schemas.encode import encode_table
from preshard.schemas.members import shard_name

PLAN_FOLDER = "plan"
LEFT = "left"
"""The segment of the packs that are left over of all partitions."""

PLACES = ("start", "length", "aligned_length")
PLACED = ("doc_id", "piece", "copy_number", "epoch", "pack_id", *PLACES)
"""Columns of the rows of a plan that say what lies where."""

_NUMBERS = (
    "source_number", "file", "line", "offset", "size", "piece", "copy_number", "epoch", "truncated", "images",
    "patches", *PLACES,
)  # fmt: skip
ROWS = pa.schema(
    [("pack", pa.int64()), ("doc_id", pa.string()), *((name, pa.int64()) for name in _NUMBERS), (MARK, pa.string())]
)
"""Columns of a segment: the rows of one partition's packs, one pack after the other; ``pack`` counts in the segment."""


class SegmentPacks(NamedTuple):
    """The packs ``[first, end)`` of a segment, counted in the segment."""

    segment: str
    first: int
    end: int


class SegmentFacts(BaseModel):
    """Facts of a planned partition that the driver has to know.

    Attributes:
        n_rows: documents of the source, rejected ones included.
        n_documents: those that are packed, however many pieces and copies each has.
        n_rejected: those that were rejected.
        n_duplicates: those of them that repeat others, and are left out for it.
        n_numbered: those of both that got a number behind their id.
        n_placed: rows of the plan: one for each piece and copy.
        groups: packs in whole groups, by stage: by epoch, under a curriculum by phase and epoch.
        left: packs that are left over.
        totals: what was taken of each source: the fields of ``MixtureTotals``.
        tokens, aligned, images, patches: sums over the rows of the plan.
        truncated: tokens that rows of the plan have lost, by source.
        limit: what keeps its packs from being fuller; of the first partition alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_rows: int
    n_documents: int
    n_rejected: int
    n_duplicates: int
    n_numbered: int
    n_placed: int
    groups: list[int]
    left: int
    totals: tuple[int, list[float], list[float], list[float], list[float] | None, list[list[float]], list[list[float]]]
    tokens: int
    aligned: int
    images: int
    patches: int
    truncated: dict[str, int]
    limit: FillLimit | None


def segment_name(partition: int) -> str:
    """The segment of a partition: the path of its file in the plan's folder, without its ending."""
    group, place = divmod(partition, FOLDER_FILES)
    return f"{group:06d}/{place:03d}"


def write_segment(
    plan: Folder,
    name: str,
    rows: Iterable[pa.Table],
    costs: Float64[np.ndarray, "packs"],
    vision: Float64[np.ndarray, "packs"],
    facts: SegmentFacts | None = None,
) -> None:
    """Writes a segment: the cost of each of its packs, then its rows, which say that all is there.

    Args:
        plan: the plan's folder.
        name: of the segment.
        rows: of its packs, with the columns :data:`ROWS`, by pack, in parts of :data:`BATCH_ROWS`.
        costs: of its packs.
        vision: the vision encoder's part of each.
        facts: what it is; None for a segment that is not one of a partition.
    """
    plan.write(f"{name}-costs.parquet", encode_table(pa.table({"cost": costs, "vision": vision})))
    batches = (batch for part in rows for batch in part.select(ROWS.names).cast(ROWS).combine_chunks().to_batches())
    write_rows(
        plan, f"{name}.parquet", batches, ROWS, by="pack", facts=lambda: facts.model_dump_json() if facts else ""
    )


def read_segment_facts(plan: Folder, name: str) -> SegmentFacts:
    return SegmentFacts.model_validate_json(read_facts(plan, f"{name}.parquet"))


def segment_batches(plan: Folder, packs: SegmentPacks) -> Iterator[pa.Table]:
    """The rows of some packs, some thousand at a time: ``pack`` counts in the segment, the rest is what was written."""
    if packs.first < packs.end:
        for batch in read_rows(plan, [f"{packs.segment}.parquet"], KeyRange("pack", packs.first, packs.end)):
            yield pa.Table.from_batches([batch])


def read_costs(plan: Folder, name: str, column: Literal["cost", "vision"] = "cost") -> Float64[np.ndarray, "packs"]:
    """The cost of each pack of a segment in GFLOP, or the vision encoder's part of it."""
    with plan.open(f"{name}-costs.parquet") as file:
        costs: Float64[np.ndarray, "packs"] = pq.read_table(file, columns=[column])[column].to_numpy()
    return costs


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedShardRef:
    """Place of a shard's packs in the plan: all that a task is sent of it."""

    name: str
    first_pack: int
    parts: tuple[SegmentPacks, ...]

    @property
    def n_packs(self) -> int:
        return sum(part.end - part.first for part in self.parts)

    @property
    def label(self) -> str:
        """The shard's name in messages."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan of any number of documents, which lies in the work folder.

    Packs stand in step order: for each stage the groups of each partition, then all packs that are left over.

    Attributes:
        folder: holds the plan's segments.
        partitions: what each partition is, in order.
        files: the files of the source, to which rows refer by number.
        sources: names of the documents' sources, to which rows refer by number.
        unused_columns: for each column that nothing reads, the number of files that have it.
        thinned: documents whose videos have fewer frames than were asked for.
        mixture: what became of each source.
        measure_seconds: time that all tasks of measuring took, those of earlier runs included.
        filtered: rows that ``where`` leaves out, by source.
    """

    folder: Folder
    partitions: Sequence[SegmentFacts]
    files: Sequence[SourceFile]
    sources: Sequence[str]
    unused_columns: dict[str, int]
    thinned: Thinned
    mixture: Mixture
    measure_seconds: float
    filtered: Mapping[str, int] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Documents of the source, rejected ones included."""
        return sum(part.n_rows for part in self.partitions)

    @property
    def n_documents(self) -> int:
        """Rows of the plan: one for each piece and copy of a document."""
        return sum(part.n_placed for part in self.partitions)

    @property
    def n_rejected(self) -> int:
        return sum(part.n_rejected for part in self.partitions)

    @property
    def n_duplicates(self) -> int:
        """Rejected documents that repeat others, and are left out for it."""
        return sum(part.n_duplicates for part in self.partitions)

    @property
    def n_numbered(self) -> int:
        """Documents, rejected ones included, that got a number behind their id."""
        return sum(part.n_numbered for part in self.partitions)

    @property
    def n_packs(self) -> int:
        return self._firsts[-1]

    @property
    def limit(self) -> FillLimit | None:
        """Limit of the packs' fill, by the first partition, which is a random sample of all documents."""
        return self.partitions[0].limit if self.partitions else None

    @cached_property
    def sections(self) -> list[SegmentPacks]:
        """The stretches of segments that make up the step order."""
        found = list[SegmentPacks]()
        ends = [0] * len(self.partitions)
        for stage in range(self._n_stages):
            for number, part in enumerate(self.partitions):
                here = part.groups[stage] if stage < len(part.groups) else 0
                found.append(SegmentPacks(segment_name(number), ends[number], ends[number] + here))
                ends[number] += here
        left = sum(part.left for part in self.partitions)
        if len(self.partitions) == 1:
            found.append(SegmentPacks(segment_name(0), ends[0], ends[0] + left))
        else:
            found.append(SegmentPacks(LEFT, 0, left))
        return [section for section in found if section.end > section.first]

    @property
    def _n_stages(self) -> int:
        return max((len(part.groups) for part in self.partitions), default=0)

    def phases(self, config: PackConfig) -> list[int]:
        """Packs in the whole groups of each phase of a curriculum; none without one."""
        found = [0] * len(config.curriculum)
        for part in self.partitions if found else ():
            for stage, here in enumerate(part.groups):
                found[stage // config.epochs] += here
        return found

    @cached_property
    def _firsts(self) -> list[int]:
        """The first pack of each section, then the number of packs."""
        return list(accumulate((section.end - section.first for section in self.sections), initial=0))

    def between(self, first: int, end: int) -> Iterator[SegmentPacks]:
        """Places of the packs ``[first, end)``."""
        at = bisect_right(self._firsts, first) - 1
        while first < end:
            section, begins = self.sections[at], self._firsts[at]
            stop = min(end, self._firsts[at + 1])
            yield SegmentPacks(section.segment, section.first + first - begins, section.first + stop - begins)
            first, at = stop, at + 1

    def shards(self, packs_per_shard: int) -> Sequence[PlannedShardRef]:
        """The shards, each made when it is asked for."""

        def shard(number: int) -> PlannedShardRef:
            first = number * packs_per_shard
            parts = self.between(first, min(first + packs_per_shard, self.n_packs))
            return PlannedShardRef(name=shard_name(number), first_pack=first, parts=tuple(parts))

        return MadeItems(-(-self.n_packs // packs_per_shard), shard)

    def rows(self, columns: Sequence[str] = PLACED) -> Iterator[pa.Table]:
        """The rows of the plan by pack and start, some thousand at a time.

        Args:
            columns: those that are wanted of what segments hold, and ``pack_id``.
        """
        for section, first_pack in zip(self.sections, self._firsts, strict=False):
            for table in segment_batches(self.folder, section):
                pack_id = table["pack"].to_numpy() + (first_pack - section.first)
                yield table.append_column("pack_id", pa.array(pack_id)).select(list(columns))

    def pack(self, pack_id: int) -> pa.Table:
        """The rows of one pack."""
        [part] = self.between(pack_id, pack_id + 1)
        return pa.concat_tables(segment_batches(self.folder, part))

    def costs(self) -> Float64[np.ndarray, "packs"]:
        """The cost of each pack in GFLOP."""
        costs = np.empty(self.n_packs)
        for section, first in zip(self.sections, self._firsts, strict=False):
            part = read_costs(self.folder, section.segment)[section.first : section.end]
            costs[first : first + len(part)] = part
        return costs

    def rejects(self) -> Iterator[pa.Table]:
        """The rejected documents, partition by partition, each in source order."""
        for number in range(len(self.partitions)):
            with self.folder.open(f"{segment_name(number)}-rejects.parquet") as file:
                yield pq.read_table(file)

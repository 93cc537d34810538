"""Segments of a plan: the rows of one partition's packs in a file, read again a few packs at a time.

A task that writes a shard reads its own rows of the plan from here, so that the driver holds no column. Batches hold
whole packs, the same number each, so the batches of some packs follow from their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int64
from pydantic import BaseModel, ConfigDict

from preshard.packer_service.job.arrow_files import BATCH_ROWS, narrow, opened, write_batches
from preshard.packer_service.job.measured import FOLDER_FILES
from preshard.packer_service.report.records import FillLimit
from preshard.packer_service.shards.store import Folder

PLAN_FOLDER = "plan"
LEFT = "left"
"""The segment of the packs that are left over of all partitions."""

PLACES = ("start", "length", "aligned_length")

_FACTS, _STEP = b"facts", b"packs_per_batch"


class SegmentPacks(NamedTuple):
    """The packs ``[first, end)`` of a segment, counted in the segment."""

    segment: str
    first: int
    end: int


class SegmentFacts(BaseModel):
    """What the driver has to know of a planned partition.

    Attributes:
        n_rows: documents of the source, rejected ones included.
        n_documents: those that are packed, however many pieces and copies each has.
        n_rejected: those that were rejected.
        n_numbered: those of both that got a number behind their id.
        n_placed: rows of the plan: one for each piece and copy.
        groups: packs in whole groups, by epoch.
        left: packs that are left over.
        totals: what was taken of each source: the fields of ``SourceTotals``.
        tokens, aligned, images, patches: sums over the rows of the plan.
        truncated: tokens that rows of the plan have lost, by source.
        limit: what keeps its packs from being fuller; of the first partition alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_rows: int
    n_documents: int
    n_rejected: int
    n_numbered: int
    n_placed: int
    groups: list[int]
    left: int
    totals: tuple[int, list[float], list[float], list[float], list[float] | None]
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
    plan: Folder, name: str, rows: pa.Table, edges: Int64[np.ndarray, "packs_plus_1"], facts: SegmentFacts | None
) -> None:
    """Writes a segment.

    Args:
        plan: the plan's folder.
        name: of the segment.
        rows: of its packs, one pack after the other.
        edges: the first row of each pack, then the number of rows.
        facts: what it is; None for a segment that is not one of a partition.
    """
    n_packs = len(edges) - 1
    step = max(1, math.ceil(BATCH_ROWS * n_packs / max(1, len(rows))))
    table = pa.table(
        {
            "pack": narrow(pa.array(np.repeat(np.arange(n_packs), np.diff(edges)))),
            **{column: narrow(rows[column]) for column in rows.column_names},
        }
    )
    table = table.replace_schema_metadata({_STEP: str(step), _FACTS: "" if facts is None else facts.model_dump_json()})
    write_batches(plan, f"{name}.arrow", table, edges[:-1:step].tolist())


def read_segment_facts(plan: Folder, name: str) -> SegmentFacts:
    with opened(plan, f"{name}.arrow") as segment:
        return SegmentFacts.model_validate_json(segment.schema.metadata[_FACTS])


def segment_batches(plan: Folder, packs: SegmentPacks) -> Iterator[pa.Table]:
    """The rows of some packs, in tables of one batch: ``pack`` counts in the segment, the rest is what was written."""
    if packs.first >= packs.end:
        return
    with opened(plan, f"{packs.segment}.arrow") as segment:
        step = int(segment.schema.metadata[_STEP])
        for number in range(packs.first // step, (packs.end - 1) // step + 1):
            table = pa.Table.from_batches([segment.get_batch(number)]).replace_schema_metadata(None)
            pack = table["pack"].to_numpy()
            start, end = np.searchsorted(pack, [packs.first, packs.end]).tolist()
            yield table.slice(start, end - start)


def write_costs(plan: Folder, name: str, costs: Float64[np.ndarray, "packs"]) -> None:
    """Writes the cost of each pack of a segment."""
    write_batches(plan, f"{name}-costs.arrow", pa.table({"cost": costs}), range(0, len(costs), BATCH_ROWS))


def read_costs(plan: Folder, name: str) -> Float64[np.ndarray, "packs"]:
    with opened(plan, f"{name}-costs.arrow") as file:
        costs: Float64[np.ndarray, "packs"] = file.read_all()["cost"].to_numpy()
    return costs

"""The packs that fill no group of their partition: those of all partitions are ordered together, behind all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from preshard.packer_service.job.segments import (
    LEFT,
    PLAN_FOLDER,
    SegmentPacks,
    read_costs,
    segment_batches,
    write_costs,
    write_segment,
)
from preshard.packer_service.plan.blend import tokens_by_source
from preshard.packer_service.plan.order import step_order
from preshard.packer_service.runtime.executors import TaskCounts
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig


def plan_left(parts: Sequence[SegmentPacks], config: PackConfig, work: str) -> TaskCounts:
    """Runs in a task: puts the packs that are left over in step order, and keeps them as a segment of their own.

    They are fewer than a window for each partition and epoch, so they fit into memory where the partitions do not.

    Args:
        parts: what is left over of each partition.
        config: the configuration of the job.
        work: the work folder.
    """
    folder = Folder(work) / PLAN_FOLDER
    tables, packs, n_packs = list[pa.Table](), list[np.ndarray](), 0
    for part in parts:
        for table in segment_batches(folder, part):
            packs.append(table["pack"].to_numpy().astype(np.int64) + (n_packs - part.first))
            tables.append(table.drop_columns(["pack"]))
        n_packs += part.end - part.first
    costs = np.concatenate([read_costs(folder, part.segment)[part.first : part.end] for part in parts])
    rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    pack = np.concatenate([np.zeros(0, np.int64), *packs])
    if n_packs:
        source, tokens = rows["source_number"].to_numpy(), rows["length"].to_numpy().astype(np.int64)
        order = step_order(
            costs,
            window=config.order.window,
            seed=config.order.seed,
            tokens=tokens_by_source(pack, source, tokens, n_packs),
        )
        position = np.empty(n_packs, np.int64)
        position[order] = np.arange(n_packs)
        costs, pack = costs[order], position[pack]
        by_pack = np.argsort(pack, kind="stable")
        rows, pack = rows.take(pa.array(by_pack)), pack[by_pack]
    edges = np.searchsorted(pack, np.arange(n_packs + 1))
    write_costs(folder, LEFT, costs)
    write_segment(folder, LEFT, rows, edges, None)
    return TaskCounts(amounts={"packs": n_packs})

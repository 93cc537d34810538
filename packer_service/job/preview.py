"""``preshard plan SOURCE``: what would packing give? Measures and plans for real, and writes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int64

from packer_service.ingest.model import PackedFor
from packer_service.ingest.packed.notes import dataset_notes
from packer_service.ingest.packed.settings import packed_target
from packer_service.ingest.source.files import list_fragments
from packer_service.ingest.source.listing import list_sources
from packer_service.job.pack import measure_all
from packer_service.job.plan import PlannedShard, ShardRange, planned_shard
from packer_service.job.read import read_planned
from packer_service.job.survey import mixed, survey
from packer_service.layout.tiles import whole_tiles
from packer_service.packs.balance import BalanceRows
from packer_service.packs.pack import build_pack
from packer_service.plan.make import plan_documents
from packer_service.plan.order import check_dp_sizes
from packer_service.report.figures import PlanReport
from packer_service.report.losses import losses
from packer_service.report.what_if import SampledPack, plan_report, sampled_packs
from packer_service.runtime.executors import Executor
from packer_service.runtime.progress import Progress
from packer_service.shards.reach import require_answer
from schemas.config import PackConfig


def plan_sources(
    sources: Sequence[str],
    config: PackConfig,
    executor: Executor,
    progress: Progress,
    dp_sizes: Sequence[int] = (),
) -> PlanReport:
    """The figures of packing sources, with every document measured.

    Raises:
        ConfigError: a source or the tokenizer does not exist.
        PlanError: a data-parallel size does not divide the window.
    """
    check_dp_sizes(dp_sizes, config.order.window)
    for source in sources:
        require_answer("SOURCE", source)
    listed = list_sources(sources, config)
    target = packed_target(config, listed.files)  # so that wrong files are reported before any task starts
    for note in (*listed.notes(), *dataset_notes(listed.files)):
        progress.note(note)
    fragments = list_fragments(listed.files)
    found = mixed(survey(fragments, measure_all(fragments, config, executor, progress), listed.unused), config)
    started = time.perf_counter()
    plan = plan_documents(found.documents, config)
    seconds = time.perf_counter() - started
    tasks = [planned_shard(found, plan, ShardRange("", pack, pack + 1)) for pack in sampled_packs(plan)]
    sampled = [result for _, result in executor.run(partial(_solve_task, config=config, target=target), tasks)]
    packed = pc.count_distinct(found.documents["doc_id"]).as_py() or 0
    return plan_report(
        plan,
        _numbers(found.documents["images"]),
        sampled,
        config,
        dp_sizes=dp_sizes,
        seconds=seconds,
        source_documents=found.n_rows,
        documents=packed,
        rejected=found.n_rows - packed - found.mixture.left_out,
        mixture=found.mixture,
        lost=losses(found.rejects, found.documents, "truncated"),
        patches=_numbers(found.documents["patches"]),
    )


def _numbers(column: pa.ChunkedArray) -> Int64[np.ndarray, "measured"]:
    return column.to_numpy().astype(np.int64)


def _solve_task(task: PlannedShard, config: PackConfig, target: PackedFor) -> SampledPack:
    """One planned pack with its real mask; its media are probed, not decoded."""
    planned = task.packs[0]
    pack = build_pack(
        [read_planned(document, config) for document in planned],
        [document.start for document in planned],
        [document.aligned_length for document in planned],
        config=config,
        pad_id=target.tokenizer.pad_id,
        axes=target.axes,
    )
    rows = BalanceRows()
    rows.add_pack(task.first_pack, pack.index, pack.layouts, pack.boundaries, pack.cum_image_bounds, pack.units.loads)
    return task.first_pack, whole_tiles(pack.index), rows.table()

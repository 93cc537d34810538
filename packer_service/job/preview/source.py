"""``preshard plan SOURCE``: what would packing give? Measures and plans for real, and writes nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.ingest.model import PackedFor
from preshard.packer_service.ingest.packed.settings import dataset_notes, packed_target
from preshard.packer_service.ingest.source.file import Fragment
from preshard.packer_service.ingest.source.files import list_fragments
from preshard.packer_service.ingest.source.listing import Sources, list_sources
from preshard.packer_service.job.planning.identify import check_duplicates
from preshard.packer_service.job.planning.measure import measure_fragment
from preshard.packer_service.job.planning.measured import KeptFragment, keep_measured
from preshard.packer_service.job.planning.partitions import PartitionPlanner
from preshard.packer_service.job.planning.where import check_where
from preshard.packer_service.job.preview.export import export_plan
from preshard.packer_service.job.preview.lengths import planned_report
from preshard.packer_service.job.writing.read import ShardDocument, read_document, read_shard
from preshard.packer_service.packs.measures import MeasureRows
from preshard.packer_service.packs.pack import build_pack
from preshard.packer_service.plan.order import check_dp_sizes
from preshard.packer_service.report.planned.what_if import SampledPack, sampled_packs
from preshard.packer_service.report.records import PlanReport
from preshard.packer_service.runtime.executors import Executor, PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.runtime.scratch import scratch_folder
from preshard.packer_service.shards.store import Folder, require_answer
from preshard.schemas.config import PackConfig


def plan_sources(
    sources: Sequence[str],
    config: PackConfig,
    executor: Executor,
    progress: Progress,
    dp_sizes: Sequence[int] = (),
    *,
    media: AllowedMedia | None = None,
    found: Sources | None = None,
    export: Path | None = None,
) -> PlanReport:
    """The figures of packing sources, with every document measured.

    Args:
        sources: files and folders: paths or URIs.
        config: the job's configuration.
        executor: runs the tasks that measure; what they return waits in a temporary folder of this machine.
        progress: hears what is done.
        dp_sizes: data-parallel sizes to give the straggler ratio for.
        media: what rows may reach besides the folders of the sources.
        found: the sources, where they have been looked at already.
        export: file to write the plan to (:func:`export_plan`).

    Raises:
        ConfigError: a source or the tokenizer does not exist.
        PlanError: a data-parallel size does not divide the window.
    """
    check_dp_sizes(dp_sizes, config.order.window)
    media = media or AllowedMedia()
    for what, location in [*(("SOURCE", source) for source in sources), *media.named()]:
        require_answer(what, location)
    listed = found or list_sources(sources, config, media)
    check_where(config, listed.files)
    check_duplicates(config, listed.files)
    target = packed_target(config, listed.files)  # so that wrong files are reported before any task starts
    for note in (*listed.notes(), *dataset_notes(listed.files)):
        progress.note(note)
    fragments = list_fragments(listed.files)
    with scratch_folder("preshard-plan-") as temporary:
        planner = PartitionPlanner(
            work=Folder(temporary),
            config=config,
            executor=PlainExecutor(),  # the folder is this machine's
            progress=progress,
            layers=target.layers,
        )
        kept = _measure(fragments, config, executor, progress, planner.work)
        started = time.perf_counter()
        planner.merge(fragments, kept)
        planned = planner.plan(list(dict.fromkeys(each.file for each in fragments)), listed.unused)
        seconds = time.perf_counter() - started
        if export is not None:
            export_plan(planned, export)
        shards = planned.shards(1)
        tasks = [
            (pack, *read_shard(shards[pack], planned.folder, planned.files, planned.sources))
            for pack in sampled_packs(planned.n_packs)
        ]
        sampled = [result for _, result in executor.run(partial(_solve_task, config=config, target=target), tasks)]
        return planned_report(planned, sampled, config, dp_sizes=dp_sizes, seconds=seconds)


def _measure(
    fragments: Sequence[Fragment], config: PackConfig, executor: Executor, progress: Progress, work: Folder
) -> dict[int, KeptFragment]:
    """Measures every fragment, and keeps the tables that tasks return: they need not run on this machine."""
    kept, amounts = dict[int, KeptFragment](), Counter[str]()
    for done, (index, found) in enumerate(executor.run(partial(measure_fragment, config=config), fragments), start=1):
        counts = keep_measured(work, index, found, 0.0)
        kept[index] = counts.kept
        amounts.update(counts.amounts)
        progress.step("measured fragments", done, len(fragments), amounts)
    return kept


def _solve_task(task: tuple[int, list[ShardDocument]], config: PackConfig, target: PackedFor) -> SampledPack:
    """One planned pack with its real mask; its media are probed, not decoded."""
    pack_id, documents = task
    for document in documents:
        read_document(document, config)
        if document.error is not None:
            raise document.error
    pack = build_pack(
        [document.arrays for document in documents],
        [document.row["start"] for document in documents],
        [document.row["aligned_length"] for document in documents],
        config=config,
        pad_id=target.tokenizer.pad_id,
        model=target.model,
    )
    rows = MeasureRows()
    rows.add_pack(pack_id, pack.index, pack.layouts, pack.boundaries, pack.parts.crops, pack.parts.loads, pack.layers)
    return rows.table()

"""``preshard plan SOURCE``: what would packing give? Measures and plans for real, and writes nothing.

Of datasets their tables alone often say it, in seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.ingest.model import PackedFor
from preshard.packer_service.ingest.packed.manifest import manifest_of
from preshard.packer_service.ingest.packed.settings import dataset_notes
from preshard.packer_service.ingest.source.file import DATASET, Fragment, SourceFile
from preshard.packer_service.job.planning.measure import measure_fragment
from preshard.packer_service.job.planning.measured import KeptFragment, keep_measured
from preshard.packer_service.job.planning.partition import PARTITION_ROWS
from preshard.packer_service.job.planning.partitions import PartitionPlanner
from preshard.packer_service.job.planning.runs import querying
from preshard.packer_service.job.preview.export import export_plan
from preshard.packer_service.job.preview.lengths import READ_ROWS, SizeRuns, planned_report, sized_report
from preshard.packer_service.job.resolve import ResolvedJob
from preshard.packer_service.job.writing.read import ShardDocument, read_document, read_shard
from preshard.packer_service.packs.lengths import SampledPack, sampled_packs
from preshard.packer_service.packs.measures import MeasureRows
from preshard.packer_service.packs.pack import build_pack
from preshard.packer_service.plan.order import check_dp_sizes
from preshard.packer_service.report.planned.plan_keys import PLACE, STORED_SIZES, stored_lengths
from preshard.packer_service.report.records import PlanReport
from preshard.packer_service.report.tables import table_parts
from preshard.packer_service.runtime.executors import Executor, PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.runtime.scratch import scratch_folder
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.manifest_parts import stored_config


def plan_sources(
    job: ResolvedJob,
    executor: Executor,
    progress: Progress,
    dp_sizes: Sequence[int] = (),
    *,
    export: Path | None = None,
) -> PlanReport:
    """The figures of packing sources, with every document measured.

    Args:
        job: the job.
        executor: runs the tasks that measure; what they return waits in a temporary folder of this machine.
        progress: hears what is done.
        dp_sizes: data-parallel sizes to give the straggler ratio for.
        export: file to write the plan to (:func:`export_plan`).

    Raises:
        PlanError: a data-parallel size does not divide the window.
    """
    config, fragments = job.config, job.fragments
    check_dp_sizes(dp_sizes, config.order.window)
    for note in job.notes():
        progress.note(note)
    with scratch_folder("preshard-plan-") as temporary:
        planner = PartitionPlanner(
            work=Folder(temporary),
            config=config,
            executor=PlainExecutor(),  # the folder is this machine's
            progress=progress,
            layers=job.target.layers,
        )
        kept = _measure(fragments, config, executor, progress, planner.work)
        started = time.perf_counter()
        planner.merge(fragments, kept)
        planned = planner.plan(job.files, job.sources.unused)
        seconds = time.perf_counter() - started
        if export is not None:
            export_plan(planned, export)
        shards = planned.shards(1)
        progress.doing("solving layouts of some packs")
        tasks = [
            (pack, *read_shard(shards[pack], planned.folder, planned.files, planned.sources))
            for pack in sampled_packs(planned.n_packs)
        ]
        sampled = [result for _, result in executor.run(partial(_solve_task, config=config, target=job.target), tasks)]
        return planned_report(planned, sampled, config, dp_sizes=dp_sizes, seconds=seconds)


def _measure(
    fragments: Sequence[Fragment], config: PackConfig, executor: Executor, progress: Progress, work: Folder
) -> dict[int, KeptFragment]:
    """Measures every fragment, and keeps the tables that tasks return: they need not run on this machine."""
    kept, amounts = dict[int, KeptFragment](), Counter[str]()
    progress.doing(f"measured fragments: 0 of {len(fragments)}")
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


DOCUMENTS_FILE = "documents.parquet"

JOINED = f"""
    SELECT doc_id, source, 0 AS piece, 0 AS copy_number, 0 AS epoch, min(line) AS line,
        {", ".join(f"sum({name})::BIGINT AS {name}" for name in STORED_SIZES)}
    FROM rows WHERE copy_number = 0 AND epoch = 0 GROUP BY doc_id, source
"""
"""Pieces of documents brought together: they lie in different packs, so far apart in a table of packed documents."""


def plan_tables(
    job: ResolvedJob,
    progress: Progress,
    dp_sizes: Sequence[int] = (),
    *,
    export: Path | None = None,
    partition_rows: int = PARTITION_ROWS,
) -> PlanReport | None:
    """The figures of packing datasets again, as far as their tables give the same packs as packing them.

    Tables are read some hundred thousand rows at a time, and what is sorted waits in a temporary folder.

    Args:
        job: the job.
        progress: hears what is done.
        dp_sizes: data-parallel sizes to give the straggler ratio for.
        export: file to write the plan to (:func:`export_plan`).
        partition_rows: documents that are planned together.

    Returns:
        None where the documents themselves have to be looked at: ``where`` or ``duplicates`` chooses, a source is no
        dataset, a document would be cut or was cut with a loss, or an id is in two datasets.

    Raises:
        PlanError: a data-parallel size does not divide the window.
        FormatError: a table is broken.
    """
    config, files = job.config, job.sources.files
    if any(file.kind != DATASET for file in files):
        return None
    check_dp_sizes(dp_sizes, config.order.window)
    if config.where is not None or config.duplicates.is_asked or any(_was_cut(file) for file in files):
        return None
    with scratch_folder("preshard-plan-") as temporary:
        work, began = Folder(temporary), time.perf_counter()
        sizes, total = SizeRuns(work, config), sum(manifest_of(file).counts.documents for file in files)
        for table in _sizes(files, min(READ_ROWS, partition_rows)):
            if _would_be_cut(table, config):
                return None
            sizes.add(table)
            progress.step("sorted lengths", sizes.n_rows, total)
        planned = sizes.plan(progress, partition_rows, unique=True, layers=job.target.layers)
        if planned.n_numbered:
            return None
        if export is not None:
            export_plan(planned, export)
        for note in dataset_notes(files):
            progress.note(note)
        return sized_report(planned, config, dp_sizes=dp_sizes, began=began)


def _was_cut(file: SourceFile) -> bool:
    """Whether pieces of a document may be missing, which only its parts can tell."""
    manifest = manifest_of(file)
    counts = manifest.counts
    return stored_config(manifest).oversize == "split" and bool(counts.rejected or counts.truncated_tokens)


def _sizes(files: Sequence[SourceFile], rows: int) -> Iterator[pa.Table]:
    """The sizes of each document, in tables of some rows; ``line`` counts the rows of all files."""
    before = 0
    for file in files:
        config = stored_config(manifest_of(file))
        parts = _numbered(table_parts(Folder(file.uri), DOCUMENTS_FILE, [*PLACE, *STORED_SIZES], rows), before)
        for table in _joined(parts, rows) if config.oversize == "split" else parts:
            found = stored_lengths(table, config)
            if len(found):
                yield found
        before += manifest_of(file).counts.pieces


def _joined(parts: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The first copy of each document, with the sizes of all of its pieces."""
    first = next(parts, None)
    if first is None:
        return
    batches = (batch for part in chain([first], parts) for batch in part.to_batches())
    with querying({"rows": pa.RecordBatchReader.from_batches(first.schema, batches)}) as tables:
        for batch in tables.sql(JOINED).to_arrow_reader(rows):
            yield pa.Table.from_batches([batch])


def _numbered(parts: Iterator[pa.Table], before: int) -> Iterator[pa.Table]:
    for part in parts:
        yield part.append_column("line", pa.array(np.arange(before + 1, before + len(part) + 1)))
        before += len(part)


def _would_be_cut(table: pa.Table, config: PackConfig) -> bool:
    if config.oversize == "reject":
        return False
    limits = {"tokens": config.seq_len, "images": config.max_images, "patches": config.max_patches}
    most = {name: pc.max(table[name]).as_py() for name in limits}
    return any(limit is not None and most[name] > limit for name, limit in limits.items())

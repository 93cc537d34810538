"""The packing job: measure, plan, write, finish. Continues where it stopped; an executor runs its tasks."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from packer_service.ingest.model import PackedFor
from packer_service.ingest.packed.notes import dataset_notes
from packer_service.ingest.packed.settings import packed_target
from packer_service.ingest.source.file import Fragment
from packer_service.ingest.source.files import list_fragments
from packer_service.ingest.source.listing import Sources, list_sources
from packer_service.job.finish import Finished, finish
from packer_service.job.measured import COPIES, KeptFragment, find_measured, measure_and_keep
from packer_service.job.ownership import Claim, claimed, finished_before, job_record, now
from packer_service.job.partition import PARTITION_ROWS
from packer_service.job.partitions import Planner
from packer_service.job.plan import Planned
from packer_service.job.records import build_and_keep
from packer_service.job.resume import FEW_BYTES, kept_shards
from packer_service.report.console import mixture_lines
from packer_service.runtime.executors import Chosen, Executor, TaskCounts
from packer_service.runtime.progress import Progress
from packer_service.shards.reach import require_answer
from packer_service.shards.store import Folder
from schemas.config import PackConfig
from schemas.errors import ConfigError
from schemas.filesystem import join
from schemas.manifest import PLANNED, RUN, ManifestHead

T = TypeVar("T", bound=TaskCounts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a job did.

    ``already_done``: the dataset was whole before, and nothing was done. ``seconds`` is the wall-clock time of each of
    this run's phases.
    """

    manifest: ManifestHead
    already_done: bool
    seconds: dict[str, float]

    @property
    def n_shards(self) -> int:
        packs_per_shard: int = self.manifest.config["packs_per_shard"]
        return -(-self.manifest.counts.packs // packs_per_shard)


def pack(
    sources: Sequence[str],
    out: str,
    config: PackConfig,
    executor: Executor,
    progress: Progress,
    *,
    few_bytes: int = FEW_BYTES,
    partition_rows: int = PARTITION_ROWS,
) -> Outcome:
    """Packs sources into a dataset. A second call continues where the first one stopped.

    Args:
        sources: files and folders: paths or URIs.
        out: folder of the dataset: a path or URI.
        config: the job's configuration.
        executor: runs the tasks.
        progress: hears what is done.
        few_bytes: up to so many bytes of an earlier run's shards are hashed by this process, and more by tasks.
        partition_rows: documents that are planned together, as often as they are taken; the plan depends on it.

    Raises:
        ConfigError: a source does not exist, a store does not answer, or ``out`` holds something other than this job's
            work.
        FolderInUseError: another job is writing into ``out``.
        DatasetDamagedError: ``out`` was whole, and a file of it is missing.
        WorkError: what an earlier run kept is damaged.
    """
    for source in sources:
        require_answer("SOURCE", source)
    require_answer("--out", out)
    found = list_sources(sources, config)
    target = packed_target(config, found.files)
    fragments = list_fragments(found.files)
    folder, record = Folder(out), job_record(config, target, fragments)
    manifest = finished_before(folder, record)
    if manifest is not None:
        return Outcome(manifest=manifest, already_done=True, seconds={})
    _check_writable(folder)
    with claimed(folder, record, progress) as claim:
        for note in (*found.notes(), *dataset_notes(found.files)):
            progress.note(note)
        job = _Job(
            claim=claim,
            config=config,
            executor=executor,
            progress=progress,
            few_bytes=few_bytes,
            partition_rows=partition_rows,
        )
        try:
            return _run(job, found, fragments, target)
        except FileNotFoundError:
            # in an object store two runs of one job can meet, and the first to end removes the work of both
            manifest = None if folder.is_local else finished_before(folder, record)
            if manifest is None:
                raise
            return Outcome(manifest=manifest, already_done=True, seconds={})


def _check_writable(folder: Folder) -> None:
    try:
        folder.make()
    except OSError as error:
        raise ConfigError(f"--out {folder.location}: cannot be written ({error.strerror or error})") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """What every step of the job needs."""

    claim: Claim
    config: PackConfig
    executor: Executor
    progress: Progress
    few_bytes: int
    partition_rows: int

    @property
    def folder(self) -> Folder:
        return self.claim.folder

    @property
    def work(self) -> Folder:
        return self.claim.work


class _Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(now - self.last, 3)
        self.last = now


def _run(job: _Job, sources: Sources, fragments: Sequence[Fragment], target: PackedFor) -> Outcome:
    clock = _Clock()
    planned = _plan(job, _with_copies(job, fragments), sources.unused, clock)
    job.progress.note(
        f"planned {planned.n_documents} documents into {planned.n_packs} packs, {planned.n_rejected} rejected"
    )
    if job.config.mixture:
        for line in mixture_lines(planned.mixture):
            job.progress.note(line)
    n_shards = _write_missing(job, planned, target)
    clock.lap("write_seconds")
    job.claim.check()
    finished = finish(
        job.folder,
        planned,
        n_shards=n_shards,
        config=job.config,
        target=target,
        unread=sources.unread,
        executor=job.executor,
        progress=job.progress,
    )
    tasks = {"measure_task_seconds": planned.measure_seconds, "write_task_seconds": finished.seconds}
    clock.lap("finish_seconds")
    _commit(job, finished, {**clock.laps, **tasks, "mixture": planned.mixture.model_dump(mode="json")})
    return Outcome(manifest=finished.head, already_done=False, seconds=clock.laps)


def _plan(job: _Job, fragments: Sequence[Fragment], unused: dict[str, int], clock: _Clock) -> Planned:
    """The plan: that of an earlier run, or one of what this run and earlier ones have measured."""
    planner = Planner(
        work=job.work,
        config=job.config,
        executor=job.executor,
        progress=job.progress,
        partition_rows=job.partition_rows,
    )
    files = list(dict.fromkeys(fragment.file for fragment in fragments))
    planned = planner.kept(files)
    if planned is not None:
        job.progress.note("found the plan of an earlier run")
        clock.lap("measure_seconds")
    else:
        kept = _measure_missing(job, planner, fragments)
        clock.lap("measure_seconds")
        job.claim.check()
        planner.merge(fragments, kept)
        planned = planner.plan(files, unused)
    clock.lap("plan_seconds")
    return planned


def _with_copies(job: _Job, fragments: Sequence[Fragment]) -> list[Fragment]:
    """The fragments, with a place in the work folder for a copy of each compressed file."""
    files = {file: number for number, file in enumerate(dict.fromkeys(fragment.file for fragment in fragments))}

    def placed(fragment: Fragment) -> Fragment:
        if fragment.file.compression is None:
            return fragment
        # Not .zst: pyarrow compresses by itself what is written to a store under such a name.
        copy = join(job.work.location, COPIES, f"{files[fragment.file]:08d}.frames")
        return replace(fragment, file=replace(fragment.file, copy=copy))

    return [placed(fragment) for fragment in fragments]


def _commit(job: _Job, finished: Finished, figures: dict[str, Any]) -> None:
    """Makes the folder a dataset, which it is from the moment the manifest is there."""
    job.folder.delete_temporary()  # of tasks whose process was killed and that ran again elsewhere
    facts = {"job": job.claim.record, "attempts": job.claim.attempts, **_host_facts(), **figures}
    job.folder.write(RUN, json.dumps(facts, indent=1).encode())
    finished.write_manifest(job.folder)
    job.work.delete_all()


def _measure_missing(job: _Job, planner: Planner, fragments: Sequence[Fragment]) -> dict[int, KeptFragment]:
    """Measures what no earlier run has measured; by number, all fragments that are in no sorted run yet."""
    merged = {index for first, end in planner.merged().items() for index in range(first, end)}
    wanted = [index for index in range(len(fragments)) if index not in merged]
    kept = find_measured(job.work, wanted)
    missing = [index for index in wanted if index not in kept]
    if len(missing) < len(fragments):
        job.progress.note(f"found {len(fragments) - len(missing)} of {len(fragments)} fragments measured before")
    measure = partial(measure_and_keep, config=job.config, work=job.work.location)
    for result in _run_tasks(job, "measured fragments", measure, [(i, fragments[i]) for i in missing]):
        kept[result.kept.number] = result.kept
    return kept


def _write_missing(job: _Job, planned: Planned, target: PackedFor) -> int:
    """Builds every shard that is not there as its record says, and returns the number of all."""
    shards = planned.shards(job.config.packs_per_shard)
    job.work.write(PLANNED, json.dumps({"shards": len(shards)}).encode())
    kept = kept_shards(job.folder, len(shards), executor=job.executor, few_bytes=job.few_bytes, progress=job.progress)
    build = partial(
        build_and_keep,
        files=planned.files,
        sources=planned.sources,
        config=job.config,
        target=target,
        out=job.folder.location,
    )
    for _ in _run_tasks(job, "written shards", build, Chosen(shards, np.flatnonzero(~kept).tolist())):
        pass
    return len(shards)


def _run_tasks(job: _Job, what: str, function: Callable[[Any], T], items: Sequence[Any]) -> Iterator[T]:
    """Runs tasks that keep their results themselves, reports their progress, and yields what they counted."""
    amounts: Counter[str] = Counter()
    for done, (_, result) in enumerate(job.executor.run(function, items), start=1):
        amounts.update(result.amounts)
        job.progress.step(what, done, len(items), amounts)
        yield result


def _host_facts() -> dict[str, Any]:
    packages = ("av", "numpy", "pillow", "pyarrow", "ray")
    return {
        "finished": now(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {package: importlib.metadata.version(package) for package in packages},
    }

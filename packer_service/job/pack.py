"""The packing job: measure, plan, write, finish. Continues where it stopped; an executor runs its tasks."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial

from preshard.packer_service.ingest.carried import files_to_carry
from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.ingest.source.forms.custom import source_hash
from preshard.packer_service.job.finish import Finished, finish, write_carried
from preshard.packer_service.job.ownership import FULL, Claim, claimed, finished_before, now
from preshard.packer_service.job.planning.partition import PARTITION_ROWS
from preshard.packer_service.job.resolve import ResolvedJob, resolve
from preshard.packer_service.job.stages import FEW_BYTES, Stages
from preshard.packer_service.plan.limits import rejected_when_written
from preshard.packer_service.report.console import mixture_lines
from preshard.packer_service.report.run import JobFacts
from preshard.packer_service.runtime.executors import Executor, OnNodes
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.runtime.proof import MOST_ENTRIES, Code, Place, make_proof
from preshard.packer_service.shards.store import Folder, require_answer
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.changes import NAMES_FILES
from preshard.schemas.errors import ConfigError, PlanError, PreshardError
from preshard.schemas.files.printed import several
from preshard.schemas.manifest import RUN, CarriedFile, ManifestHead

NODES = "nodes"
"""Folder, in that of the work, of the files by which nodes prove that they share it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Outcome of a job.

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
    media: AllowedMedia | None = None,
    few_bytes: int = FEW_BYTES,
    partition_rows: int = PARTITION_ROWS,
) -> Outcome:
    """Packs sources into a dataset: :func:`~preshard.packer_service.job.resolve.resolve`, then :func:`run`."""
    job = resolve(sources, config, media)
    return run(job, out, executor, progress, few_bytes=few_bytes, partition_rows=partition_rows)


def run(
    job: ResolvedJob,
    out: str,
    executor: Executor,
    progress: Progress,
    *,
    few_bytes: int = FEW_BYTES,
    partition_rows: int = PARTITION_ROWS,
) -> Outcome:
    """Runs a job. A second call continues where the first one stopped.

    Args:
        job: the job.
        out: folder of the dataset: a path or URI.
        executor: runs the tasks.
        progress: hears what is done.
        few_bytes: up to so many bytes of an earlier run's shards are hashed by this process, and more by tasks.
        partition_rows: documents that are planned together, as often as they are taken; the plan depends on it.

    Raises:
        ConfigError: ``out`` does not answer, or holds something other than this job's work.
        FolderInUseError: another job is writing into ``out``.
        DatasetDamagedError: ``out`` was whole, and a file of it is missing.
        WorkError: what an earlier run kept is damaged.
    """
    require_answer("--out", out)
    folder, record = Folder(out), job.record
    manifest = finished_before(folder, record)
    if manifest is not None:
        return Outcome(manifest=manifest, already_done=True, seconds={})
    _check_writable(folder)
    with _said_when_full(folder), claimed(folder, record, progress) as claim:
        carried = files_to_carry(job.config, job.sources.files)
        for note in filter(None, (*job.notes(), carried.note)):
            progress.note(note)
        stages = Stages(
            claim=claim, executor=executor, progress=progress, few_bytes=few_bytes, partition_rows=partition_rows
        )
        if isinstance(executor, OnNodes):
            nodes = (claim.work / NODES).location
            executor.require(lambda: make_proof(out, nodes, _places(job), _code(job)))
        try:
            return _run(job, stages, write_carried(folder, carried.files))
        except (ConfigError, PlanError) as error:
            claim.end(str(error))
            raise
        except FileNotFoundError:
            # in an object store two runs of one job can meet, and the first to end removes the work of both
            manifest = None if folder.is_local else finished_before(folder, record)
            if manifest is None:
                raise
            return Outcome(manifest=manifest, already_done=True, seconds={})


@contextmanager
def _said_when_full(folder: Folder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise PreshardError(
            f"--out {folder.location}: it or {tempfile.gettempdir()} is full ({error.strerror}); make room, and run "
            "the same command again to continue"
        ) from None


def _places(job: ResolvedJob) -> list[Place]:
    """Files and folders that every node has to see."""
    files = job.sources.files[:MOST_ENTRIES]
    named = [("SOURCE", file.uri) for file in files]
    named += [("the folder of media", folder) for folder in dict.fromkeys(file.media.folder for file in files)]
    named += job.media.named()
    named += [(key, str(value)) for key in NAMES_FILES if (value := getattr(job.config, key)) is not None]
    return [Place(item=item, location=location, remedy="mount it there") for item, location in named]


def _code(job: ResolvedJob) -> list[Code]:
    """The user's own functions, which every node has to import alike."""
    hashes = {file.form: file.form_sha256 for file in job.sources.files}
    return [
        Code(item=f"--form {name}", hash_it=partial(source_hash, name), sha256=sha256)
        for name, sha256 in sorted(hashes.items())
        if sha256 is not None
    ]


def _check_writable(folder: Folder) -> None:
    try:
        folder.make()
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"--out {folder.location}: is a file, or below one; give a folder") from None
    except OSError as error:
        raise ConfigError(f"--out {folder.location}: cannot be written ({error.strerror or error})") from None


class _Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(now - self.last, 3)
        self.last = now


def _run(job: ResolvedJob, stages: Stages, carried: list[CarriedFile]) -> Outcome:
    clock, progress = _Clock(), stages.progress
    planned = stages.plan(job, clock.lap)
    progress.note(
        f"planned {several(planned.n_documents, 'document')} into {several(planned.n_packs, 'pack')}, "
        f"{planned.n_rejected:,} rejected"
    )
    for line in mixture_lines(planned.mixture):
        progress.note(line)
    n_shards = stages.write_missing(job, planned)
    clock.lap("write_seconds")
    stages.claim.check()
    finished = finish(
        stages.claim.folder,
        planned,
        n_shards=n_shards,
        config=job.config,
        target=job.target,
        unread=job.sources.unread,
        carried=carried,
        executor=stages.executor,
        progress=progress,
    )
    clock.lap("finish_seconds")
    tokens = sum(part.tokens for part in planned.partitions)
    facts = JobFacts(
        job=stages.claim.record,
        attempts=stages.claim.attempts,
        finished=now(),
        python=platform.python_version(),
        platform=platform.platform(),
        versions=_versions(),
        **clock.laps,
        measure_task_seconds=planned.measure_seconds,
        write_task_seconds=finished.seconds,
        mixture=planned.mixture,
        limit=rejected_when_written(planned.limit, tokens, finished.head.counts),
        thinned=planned.thinned,
    )
    _commit(stages.claim, finished, facts)
    return Outcome(manifest=finished.head, already_done=False, seconds=clock.laps)


def _commit(claim: Claim, finished: Finished, facts: JobFacts) -> None:
    """Makes the folder a dataset, which it is from the moment the manifest is there."""
    claim.folder.delete_temporary()  # of tasks whose process was killed and that ran again elsewhere
    claim.folder.write(RUN, json.dumps(facts.model_dump(mode="json"), indent=1).encode())
    finished.write_manifest(claim.folder)
    claim.work.delete_all()


@cache
def _versions() -> dict[str, str]:
    """Versions of packages, looked up once: finding them on the path takes longer than packing a small dataset again.

    Packing on this machine runs without Ray, and an environment need not have it.
    """
    found = {}
    for package in ("av", "numpy", "pillow", "pyarrow", "ray"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found

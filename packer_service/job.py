"""The packing job: measure, plan, write, finish. Goes on where it stopped; knows no Ray, an executor runs its tasks."""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from packer_service.build import BuiltShard, ShardTask, build_shard
from packer_service.config import PackConfig
from packer_service.finish import make_manifest
from packer_service.ingest.sources import Fragment, list_fragments, list_sources
from packer_service.ingest.tokenizer import load_tokenizer
from packer_service.job_record import job_record, refuse_difference
from packer_service.measure import measure_fragment
from packer_service.progress import Progress
from packer_service.shards.store import Folder
from packer_service.survey import Survey, plan_of, shard_ranges, shard_task, survey
from schemas.codec import decode_manifest, encode_json, encode_table
from schemas.errors import ConfigError
from schemas.manifest import MANIFEST, RUN, SHARDS, WORK, Manifest, ShardEntry
from schemas.pack import Plan

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Runs a function over items, anywhere and in any order, and yields each result with its item's index."""

    def run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]: ...


class PlainExecutor:
    """One item after the other, in this process."""

    def run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        for index, item in enumerate(items):
            yield index, function(item)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a job did. ``already_done``: the dataset was whole before, and nothing was done."""

    manifest: Manifest
    already_done: bool
    seconds: dict[str, float]


def pack(sources: Sequence[str], out: str, config: PackConfig, executor: Executor, progress: Progress) -> Outcome:
    """Packs sources into a dataset. A second call goes on where the first one stopped.

    Raises:
        ConfigError: a source does not exist, or ``out`` holds something else than this job's work.
    """
    clock = _Clock()
    tokenizer = load_tokenizer(config.tokenizer, config.special_tokens).entry
    fragments = list_fragments(list_sources(sources))
    job = _Job(folder=Folder(out), config=config, executor=executor, progress=progress)
    record = job_record(config, tokenizer, fragments)
    if job.folder.is_file(MANIFEST):
        return _finished_before(job, record)
    _claim(job, record)
    found = survey(fragments, _measure_missing(job, fragments))
    clock.lap("measure_seconds")
    plan = plan_of(found.documents, config)
    clock.lap("plan_seconds")
    progress.note(f"planned {plan.n_documents} documents into {plan.n_packs} packs, {len(found.rejects)} rejected")
    shards = _write_missing(job, found, plan)
    clock.lap("write_seconds")
    manifest = make_manifest(
        job.folder, job.work / SHARDS, shards, found=found, plan=plan, config=config, tokenizer=tokenizer
    )
    clock.lap("finish_seconds")
    job.folder.write(RUN, json.dumps({"job": record, **_host_facts(), **clock.laps}, indent=1).encode())
    job.folder.write(MANIFEST, encode_json(manifest))
    job.work.delete_all()
    return Outcome(manifest=manifest, already_done=False, seconds=clock.laps)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """What every step of the job needs."""

    folder: Folder
    config: PackConfig
    executor: Executor
    progress: Progress

    @property
    def work(self) -> Folder:
        return self.folder / WORK


class _Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(now - self.last, 3)
        self.last = now


def measure_all(
    fragments: Sequence[Fragment], config: PackConfig, executor: Executor, progress: Progress
) -> list[tuple[pa.Table, int]]:
    """Measures every fragment, keeping nothing on disk: for ``plan``, which writes no dataset."""
    results: list[tuple[pa.Table, int]] = [(None, 0)] * len(fragments)
    for done, (index, result) in enumerate(executor.run(partial(measure_fragment, config=config), fragments), start=1):
        results[index] = result
        progress.step("measured fragments", done, len(fragments))
    return results


def _finished_before(job: _Job, record: dict[str, Any]) -> Outcome:
    manifest = decode_manifest(job.folder.read(MANIFEST), MANIFEST)
    if not job.folder.is_file(RUN):
        raise ConfigError(
            f"--out {job.folder.location}: is a whole dataset without {RUN}, so of which job is not known"
        )
    before = json.loads(job.folder.read(RUN))["job"]
    refuse_difference(before, record, job.folder.location)
    job.work.delete_all()
    return Outcome(manifest=manifest, already_done=True, seconds={})


def _claim(job: _Job, record: dict[str, Any]) -> None:
    """Takes a new folder for this job, or goes on with one that it took before."""
    folder, work = job.folder, job.work
    if work.is_file("job.json"):
        refuse_difference(json.loads(work.read("job.json")), record, folder.location)
        folder.delete_temporary()
        return
    try:
        names = [name for name in folder.names() if not name.startswith(f"{WORK}/")]
        if names:
            reason = f"holds {names[0]}, of no job of ours; give a new or empty folder"
            raise ConfigError(f"--out {folder.location}: {reason}")
        work.delete_all()
        work.write("job.json", json.dumps(record).encode())
    except OSError as error:
        raise ConfigError(f"--out {folder.location}: cannot be written ({error.strerror or error})") from None


def _measure_missing(job: _Job, fragments: Sequence[Fragment]) -> list[tuple[pa.Table, int]]:
    """Measures what no earlier run has, and keeps every fragment's result."""
    missing = [i for i in range(len(fragments)) if not job.work.is_file(_measured_name(i))]
    if len(missing) < len(fragments):
        job.progress.note(f"found {len(fragments) - len(missing)} of {len(fragments)} fragments measured before")
    measure = partial(measure_fragment, config=job.config)
    results = job.executor.run(measure, [fragments[i] for i in missing])
    for done, (index, (table, n_lines)) in enumerate(results, start=1):
        kept = table.replace_schema_metadata({"n_lines": str(n_lines)})
        job.work.write(_measured_name(missing[index]), encode_table(kept))
        job.progress.step("measured fragments", done, len(missing))
    return [_read_measured(job.work, i) for i in range(len(fragments))]


def _measured_name(index: int) -> str:
    return f"measured/{index:08d}.parquet"


def _read_measured(work: Folder, index: int) -> tuple[pa.Table, int]:
    table = pq.read_table(io.BytesIO(work.read(_measured_name(index))))
    return table.replace_schema_metadata(None), int(table.schema.metadata[b"n_lines"])


def _write_missing(job: _Job, found: Survey, plan: Plan) -> list[str]:
    """Builds every shard that no earlier run has, and gives the names of all.

    A shard is done when its record is, which is written last.
    """
    ranges = shard_ranges(plan, job.config.packs_per_shard)
    missing = [each for each in ranges if not _is_built(job, each[0])]
    if len(missing) < len(ranges):
        job.progress.note(f"found {len(ranges) - len(missing)} of {len(ranges)} shards written before")
    tasks = [shard_task(found, plan, *each) for each in missing]
    build = partial(_build_and_record, config=job.config, out=job.folder.location)
    for done, _ in enumerate(job.executor.run(build, tasks), start=1):
        job.progress.step("written shards", done, len(tasks))
    return [name for name, _, _ in ranges]


def _build_and_record(task: ShardTask, config: PackConfig, out: str) -> str:
    """Runs in a task: writes the shard, then its table rows, then the record that says that all of it is there."""
    folder = Folder(out)
    built = build_shard(task, config, folder / SHARDS)
    record = folder / WORK / SHARDS / built.name
    for name, table in built.tables.items():
        record.write(name, encode_table(table))
    record.write("entry.json", encode_json(_entry(built)))
    return built.name


def _entry(built: BuiltShard) -> ShardEntry:
    return ShardEntry(
        name=built.name,
        bytes=built.size,
        sha256=built.sha256,
        packs=len(built.tables["packs.parquet"]),
        first_pack=built.first_pack,
    )


def _is_built(job: _Job, name: str) -> bool:
    record = job.work / SHARDS / name
    if not record.is_file("entry.json"):
        return False
    entry = ShardEntry.model_validate_json(record.read("entry.json"))
    return (job.folder / SHARDS).size(name) == entry.bytes


def _host_facts() -> dict[str, Any]:
    packages = ("av", "numpy", "pillow", "pyarrow", "ray")
    return {
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {package: importlib.metadata.version(package) for package in packages},
    }

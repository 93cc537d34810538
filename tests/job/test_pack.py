"""The job as a whole, in this process: every document once, always the same bytes, and continuing after a stop."""

from __future__ import annotations

import importlib.metadata
import io
import json
import shutil
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from stored import file_bytes

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import _versions, pack
from preshard.packer_service.job.plan import PLAN_FOLDER
from preshard.packer_service.job.planning.partitions import PLAN_FILE
from preshard.packer_service.job.stages import CHECKED_TOGETHER
from preshard.packer_service.job.writing.records import encode_record, read_record, record_name
from preshard.packer_service.report.console import print_report
from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import WORK, Manifest


def test_every_source_document_is_packed_or_rejected_once(
    tiny_dataset: Path, tiny_source: Path, tiny_rejects: dict[str, str]
) -> None:
    """Fails when a document is lost between measuring and writing, or appears twice."""
    documents = pq.read_table(tiny_dataset / "documents.parquet").to_pydict()
    rejects = pq.read_table(tiny_dataset / "rejects.parquet").to_pydict()
    lines = (tiny_source / "rows.jsonl").read_text().splitlines()
    ids = [json.loads(line).get("id", f"tiny/rows.jsonl:{i}") for i, line in enumerate(lines[:-1], start=1)]
    ids.append(f"tiny/rows.jsonl:{len(lines)}")
    assert Counter(documents["doc_id"] + rejects["doc_id"]) == Counter(ids)
    assert max(Counter(documents["doc_id"]).values()) == 1
    assert dict(zip(rejects["doc_id"], rejects["code"], strict=True)) == tiny_rejects


def test_packing_twice_gives_the_same_bytes(
    tiny_dataset: Path, tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object
) -> None:
    """Fails when a clock, a hash seed or a path of the machine gets into the dataset."""
    moved = shutil.copytree(tiny_source, tmp_path / "elsewhere" / "tiny")
    pack([str(moved)], str(tmp_path / "again"), tiny_config, PlainExecutor(), progress)
    assert file_bytes(tmp_path / "again") == file_bytes(tiny_dataset)
    assert len(list(tiny_dataset.glob("shards/*.tar"))) > 1


def test_an_environment_without_ray_packs(
    tiny_dataset: Path, tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object, monkeypatch: Any
) -> None:
    """Fails when packing on this machine imports Ray, or asks for its version, where it is not installed."""

    def version(package: str) -> str:
        if package == "ray":
            raise importlib.metadata.PackageNotFoundError(package)
        return "1"

    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(importlib.metadata, "version", version)
    _versions.cache_clear()
    try:
        pack([str(tiny_source)], str(tmp_path / "out"), tiny_config, PlainExecutor(), progress)
    finally:
        _versions.cache_clear()
    assert file_bytes(tmp_path / "out") == file_bytes(tiny_dataset)
    versions = json.loads((tmp_path / "out" / "run.json").read_text())["versions"]
    assert sorted(versions) == ["av", "numpy", "pillow", "pyarrow"]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_stopped_job_continues_with_what_is_missing(
    tiny_dataset: Path,
    tiny_source: Path,
    tiny_config: PackConfig,
    tmp_path: Path,
    progress: object,
    after: int,
    stopping: Any,
) -> None:
    """Fails when a re-run starts again from nothing, or when what is left differs from an undisturbed run."""
    out = tmp_path / "out"
    with pytest.raises(stopping.Stopped):
        pack([str(tiny_source)], str(out), tiny_config, stopping(after), progress)
    assert not (out / "manifest.json").exists()
    rest = stopping(1000)
    pack([str(tiny_source)], str(out), tiny_config, rest, progress, few_bytes=0)
    n_shards, written = len(list(tiny_dataset.glob("shards/*.tar"))), max(after - 1, 0)
    assert rest.ran["measure_and_keep"] == (0 if after else 1)
    assert rest.ran["build_and_keep"] == n_shards - written
    assert rest.ran["find_kept"] == (-(-n_shards // CHECKED_TOGETHER) if written else 0)
    assert file_bytes(out) == file_bytes(tiny_dataset)


class StopsWhenAllIsWritten:
    """A progress that stops the job after its last shard, before there is a manifest."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def doing(self, what: str) -> None: ...

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: object = None) -> None:  # noqa: ARG002
        if what == "written shards" and done == total:
            raise self.error


def test_a_job_with_nothing_left_to_do_runs_no_task(
    tiny_dataset: Path, tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object, stopping: Any
) -> None:
    """Fails when a few shards that are there already are hashed by tasks, for which Ray would have to start."""
    out = tmp_path / "out"
    with pytest.raises(stopping.Stopped):
        pack([str(tiny_source)], str(out), tiny_config, PlainExecutor(), StopsWhenAllIsWritten(stopping.Stopped))
    assert not (out / "manifest.json").exists()
    assert len(list(out.glob("shards/preshard-*.tar"))) > 1
    rest = stopping(0)
    pack([str(tiny_source)], str(out), tiny_config, rest, progress)
    assert not rest.ran
    assert file_bytes(out) == file_bytes(tiny_dataset)


def keep_as_if_slow(work: Folder, seconds: float) -> None:
    """Rewrites what a stopped run kept, its plan and one shard, as if measuring and that shard had taken so long."""
    facts = json.loads((work / PLAN_FOLDER).read(PLAN_FILE))
    (work / PLAN_FOLDER).write(PLAN_FILE, json.dumps({**facts, "measure_seconds": seconds}).encode())
    work.write(record_name(0), encode_record(replace(read_record(work, 0), seconds=seconds)))


def test_the_report_says_what_all_runs_took(
    tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object, stopping: Any
) -> None:
    """Fails when what an earlier run measured or wrote costs nothing in the report, or is counted again."""
    out = str(tmp_path / "out")
    with pytest.raises(stopping.Stopped):
        pack([str(tiny_source)], out, tiny_config, stopping(2), progress)
    keep_as_if_slow(Folder(out) / WORK, 10.0)
    started = time.monotonic()
    pack([str(tiny_source)], out, tiny_config, PlainExecutor(), progress)
    took = time.monotonic() - started
    figures = report_dataset(out)
    assert figures.attempts == 2
    assert figures.seconds["measure_task_seconds"] == 10
    assert 10 < figures.seconds["write_task_seconds"] < 10 + took
    assert figures.measured_per_second == pytest.approx(figures.source_documents / 10, abs=0.05)
    console = Console(file=io.StringIO(), width=110)
    print_report(figures, console)
    assert "cost: measuring 10.0 s of tasks (4 documents per second of one), planning " in console.file.getvalue()
    assert "; runs: 2\n" in console.file.getvalue()


def test_a_finished_job_does_nothing(
    tiny_dataset: Path, tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object, stopping: Any
) -> None:
    """Fails when a second run measures or writes again."""
    out = shutil.copytree(tiny_dataset, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    outcome = pack([str(tiny_source)], str(out), tiny_config, stopping(0), progress)
    assert outcome.already_done
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_another_configuration_into_the_same_folder_is_refused(
    tiny_dataset: Path, tiny_source: Path, tiny_settings: list[str], progress: object
) -> None:
    """Fails when a dataset is mixed from two configurations, or the refusal does not show the difference."""
    other = load_config(None, [*tiny_settings, "jpeg_quality=50"])
    with pytest.raises(ConfigError, match=r"config.jpeg_quality: 90, now 50"):
        pack([str(tiny_source)], str(tiny_dataset), other, PlainExecutor(), progress)


def test_a_folder_with_other_files_is_refused(
    tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object
) -> None:
    """Fails when packing into a folder in use would mix files."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        pack([str(tiny_source)], str(tmp_path), tiny_config, PlainExecutor(), progress)


def test_half_written_files_of_a_killed_run_are_removed(
    tiny_dataset: Path, tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object, stopping: Any
) -> None:
    """Fails when a temporary file of a killed task stays in the dataset."""
    out = tmp_path / "out"
    with pytest.raises(stopping.Stopped):
        pack([str(tiny_source)], str(out), tiny_config, stopping(2), progress)
    (out / "shards" / ".tmp-0123-preshard-000001.tar").write_bytes(b"half")
    pack([str(tiny_source)], str(out), tiny_config, PlainExecutor(), progress)
    assert file_bytes(out) == file_bytes(tiny_dataset)


def test_a_document_that_breaks_after_measuring_leaves_padding(
    tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object, stopping: Any
) -> None:
    """Fails when an image replaced between measuring and writing stops the job, or its document vanishes silently."""
    source = shutil.copytree(tiny_source, tmp_path / "tiny")
    out = tmp_path / "out"
    with pytest.raises(stopping.Stopped):
        pack([str(source)], str(out), tiny_config, stopping(1), progress)
    (source / "3.png").unlink()
    outcome = pack([str(source)], str(out), tiny_config, PlainExecutor(), progress)
    rejects = pq.read_table(out / "rejects.parquet").to_pylist()
    late = [row for row in rejects if row["stage"] == "write"]
    assert late
    assert {row["code"] for row in late} == {"missing_media"}
    counts = outcome.manifest.counts
    assert counts.documents + counts.rejected == counts.source_documents
    manifest = Manifest.model_validate_json((out / "manifest.json").read_text())
    assert manifest.counts.documents == 29 - len(late)


def test_an_empty_source_gives_an_empty_dataset(tiny_config: PackConfig, tmp_path: Path, progress: object) -> None:
    """Fails when no document at all is taken for an error in the middle of the job."""
    (tmp_path / "empty.jsonl").write_text("")
    outcome = pack([str(tmp_path / "empty.jsonl")], str(tmp_path / "out"), tiny_config, PlainExecutor(), progress)
    assert outcome.manifest.counts.packs == 0
    assert outcome.n_shards == 0
    assert pq.read_table(tmp_path / "out" / "packs.parquet").num_rows == 0

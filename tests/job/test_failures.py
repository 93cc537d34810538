"""A disk that fills up or cannot be written, and sources that change while they are packed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored import file_bytes

from preshard.packer_service.cli import main
from preshard.packer_service.ingest.source.containers import row_groups
from preshard.packer_service.job.pack import Outcome, pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.config import PackConfig


@dataclass(frozen=True)
class HookedExecutor(PlainExecutor):
    """Runs a function between measuring and writing."""

    between: Callable[[], object]

    def run(self, function: Callable, items: Sequence) -> Iterator[tuple[int, object]]:
        if function.func.__name__ == "build_and_keep":
            self.between()
        yield from super().run(function, items)


@dataclass(frozen=True)
class Disk:
    """A small disk of its own."""

    path: Path

    def remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "preshard-test", str(path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield Disk(path)
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_settings: list[str]) -> Callable:
    """The command ``preshard pack``, its tasks run in this process: its exit status and last line."""

    def run(source: Path, out: Path, executor: PlainExecutor) -> tuple[int, str]:
        monkeypatch.setattr(
            "preshard.packer_service.cli.options.choose_executor", lambda *_, **__: nullcontext(executor)
        )
        words = [word for setting in tiny_settings for word in ("--set", setting)]
        with pytest.raises(SystemExit) as stopped:
            main(["pack", str(source), "--out", str(out), *words])
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return int(stopped.value.code or 0), said.splitlines()[-1]

    return run


def assert_nothing_half_written(out: Path, whole: Path) -> None:
    """Files under final names are as in the whole dataset, and there is no manifest."""
    found, expected = file_bytes(out), file_bytes(whole)
    assert "manifest.json" not in found
    assert not [name for name in found if ".tmp-" in name]
    assert all(data == expected[name] for name, data in found.items() if not name.startswith(".work/"))


@pytest.mark.parametrize(
    ("again", "share"),
    [
        *((False, 0.02), (False, 0.98), (True, 0.3)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, 0.4), (True, 0.95))),
    ],
)
def test_a_full_disk_is_one_line_and_the_next_run_goes_on(
    disk: Disk,
    run: Callable,
    tiny_source: Path,
    tiny_dataset: Path,
    tiny_config: PackConfig,
    tmp_path: Path,
    progress: object,
    again: bool,
    share: float,
) -> None:
    """Fails when a full disk leaves a part of a file under its name, or of crops that were copied, ends in a traceback,
    or spoils the next run.
    """
    source, whole, out = tiny_source, tiny_dataset, disk.path / "out"
    if again:
        source, whole = tiny_dataset, tmp_path / "whole"
        pack([str(source)], str(whole), tiny_config, PlainExecutor(), progress)
    disk.remount(f"size={int(sum(map(len, file_bytes(whole).values())) * share) // 4096 * 4}k")
    status, said = run(source, out, PlainExecutor())
    assert status == 1
    assert said.startswith(f"preshard: --out {out}: ")
    assert said.endswith(" is full (No space left on device); make room, and run the same command again to continue")
    assert_nothing_half_written(out, whole)
    disk.remount("size=64m")
    pack([str(source)], str(out), tiny_config, PlainExecutor(), progress)
    assert file_bytes(out) == file_bytes(whole)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file that this process writes may grow beyond ``size`` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_may_not_grow_is_one_line(
    run: Callable, tmp_path: Path, tiny_config: PackConfig, progress: object
) -> None:
    """Fails as above, where no disk can be mounted: the first shard does not fit under the limit of a file's size.

    Text alone: a process of decoders that started now would keep the limit.
    """
    rows = [{"id": f"text-{i}", "text": f"line {i}. " * (3 + 11 * i)} for i in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    whole, out = tmp_path / "whole", tmp_path / "out"
    pack([str(tmp_path / "rows.jsonl")], str(whole), tiny_config, PlainExecutor(), progress)
    with largest_file(max(path.stat().st_size for path in whole.glob("shards/*.tar")) - 512):
        status, said = run(tmp_path / "rows.jsonl", out, PlainExecutor())
    assert (status, said) == (1, "preshard: [Errno 27] File too large")
    assert list(out.glob("shards")), "the shard was begun"
    assert_nothing_half_written(out, whole)


def test_a_read_only_target_is_one_line(disk: Disk, run: Callable, tiny_source: Path) -> None:
    """Fails when the line names neither the folder nor the reason, or the work is done before it is found out."""
    (disk.path / "there").mkdir()
    disk.remount("ro")
    for name in ("new", "there"):
        status, said = run(tiny_source, disk.path / name, PlainExecutor())
        assert (status, said) == (
            2,
            f"preshard: --out {disk.path / name}: cannot be written (Read-only file system)",
        )


@pytest.fixture
def source(tiny_source: Path, tmp_path: Path) -> Path:
    """The tiny source, its first five rows in Parquet too, under other ids; may be changed."""
    folder = shutil.copytree(tiny_source, tmp_path / "tiny")
    rows = [{"id": f"parquet-{i}", "text": f"row {i} " * 20} for i in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet", row_group_size=2)
    return folder


def change(path: Path, data: bytes) -> None:
    """Another file of the same name, as a copy or a download leaves it."""
    path.with_name("new").write_bytes(data)
    path.with_name("new").replace(path)


@pytest.fixture
def forget_rows() -> Callable[[], None]:
    """Lets the row groups go that this process has kept from measuring: on Ray, another one often writes."""
    return row_groups.RECENT.clear


def packed_while(source: Path, out: Path, config: PackConfig, progress: object, between: Callable) -> list[dict]:
    """Packs, changing the source between measuring and writing; the rejects of writing. What is there is sound."""
    outcome: Outcome = pack([str(source)], str(out), config, HookedExecutor(between), progress)
    assert verify_dataset(str(out), processes=1, progress=progress).as_json()["broken"] == []
    counts = outcome.manifest.counts
    assert counts.documents + counts.rejected == counts.source_documents
    return [row for row in pq.read_table(out / "rejects.parquet").to_pylist() if row["stage"] == "write"]


@pytest.mark.parametrize(("name", "n_documents"), [("rows.jsonl", 29), ("rows.parquet", 5)])
def test_a_source_file_deleted_after_measuring_is_rejected_with_the_reason(
    source: Path,
    tiny_config: PackConfig,
    tmp_path: Path,
    progress: object,
    forget_rows: Callable,
    name: str,
    n_documents: int,
) -> None:
    """Fails when a source file that vanishes ends the job, or its documents are lost without a word."""
    rejects = packed_while(
        source, tmp_path / "out", tiny_config, progress, lambda: (forget_rows(), (source / name).unlink())
    )
    assert len(rejects) == n_documents
    assert {(row["code"], row["message"]) for row in rejects} == {
        ("decode_failed", "the source file was removed after it was measured")
    }


def test_a_row_file_replaced_after_measuring_gives_its_new_rows_to_nobody(
    source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object
) -> None:
    """Fails when a row of another file is packed under the id and in the place of the one that was measured."""
    lines = (source / "rows.jsonl").read_text().splitlines(keepends=True)
    turned = "".join([lines[1], lines[0], *lines[2:]]).encode()
    rejects = packed_while(
        source, tmp_path / "out", tiny_config, progress, lambda: change(source / "rows.jsonl", turned)
    )
    assert {row["doc_id"] for row in rejects} == {json.loads(line)["id"] for line in lines[:2]}
    assert {row["code"] for row in rejects} == {"decode_failed"}
    assert all(row["message"].startswith("changed since it was measured: ") for row in rejects)


@pytest.mark.parametrize("what", ["other rows", "fewer rows", "no Parquet"])
def test_a_parquet_file_replaced_after_measuring_gives_its_new_rows_to_nobody(
    source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object, forget_rows: Callable, what: str
) -> None:
    """Fails when a row group that is not the one measured is packed, or one that is not there ends the job."""
    path = source / "rows.parquet"
    new = {
        "other rows": [{"id": f"parquet-{i}", "text": f"another {i} " * 30} for i in range(5)],
        "fewer rows": [{"id": "parquet-0", "text": "row 0 " * 20}],
        "no Parquet": [],
    }[what]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(new), sink, row_group_size=2)
    data = sink.getvalue().to_pybytes() if new else os.urandom(2000)
    rejects = packed_while(source, tmp_path / "out", tiny_config, progress, lambda: (forget_rows(), change(path, data)))
    assert len(rejects) == (4 if what == "fewer rows" else 5)
    assert {row["code"] for row in rejects} <= {"decode_failed", "bad_row"}
    assert all(row["message"] for row in rejects)


def test_a_picture_replaced_by_a_broken_one_after_measuring_is_rejected(
    source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object
) -> None:
    """Fails when a half-copied picture ends the job, or is packed as far as it goes."""
    picture = source / "2.png"
    rejects = packed_while(
        source, tmp_path / "out", tiny_config, progress, lambda: change(picture, picture.read_bytes()[:400])
    )
    assert rejects
    assert {row["code"] for row in rejects} <= {"bad_image", "decode_failed"}
    assert all("2.png" in row["message"] for row in rejects)

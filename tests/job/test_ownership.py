"""Ownership of a folder: new, claimed by this job, by another, in use, or holding a whole dataset."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.job.job_record import PLAN, refuse_difference
from preshard.packer_service.job.ownership import claimed, finished_before
from preshard.packer_service.shards.lock import FolderInUseError, locked
from preshard.packer_service.shards.store import Folder
from preshard.schemas.errors import ConfigError, PreshardError

RECORD = {"version": "1", "config": {"seq_len": 8, "vision": {"side": 4}}, "files": ["a", "b"]}


class Notes(list[str]):
    """A progress that remembers its notes."""

    def doing(self, what: str) -> None: ...

    def note(self, message: str) -> None:
        self.append(message)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"version": "2"}, r"\(version: '1', now '2'\)"),
        ({"config": {"seq_len": 9, "vision": {"side": 4}}}, r"\(config.seq_len: 8, now 9\)"),
        ({"config": {"seq_len": 7, "vision": {"side": 4}}}, r"\(config.seq_len: 8, now 7\)"),
        ({"config": {"seq_len": 8, "vision": {}}}, r"\(config.vision.side: 4, now None\)"),
        ({"files": ["a", "c"]}, r"\(files\[1\]: 'b', now 'c'\)"),
        ({"files": ["a"]}, r"\(files: \['a', 'b'\], now \['a'\]\)"),
        ({"more": 1}, r"\(more: None, now 1\)"),
        ({"version": "2" * 200}, rf"\(version: '1', now '{'2' * 79}\.\.\.\)"),
        ({"a": 1, "b": 2, "c": 3}, r"\(a: None, now 1; b: None, now 2; c: None, now 3\)"),
        ({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}, r"\(a: .*; b: .*; c: None, now 3; and 2 more\)"),
    ],
)
def test_a_difference_is_shown_where_it_is(change: dict[str, Any], shown: str) -> None:
    """Fails when another job's folder is taken for ours, or its user has to search for the difference."""
    with pytest.raises(
        ConfigError, match=rf"--out here: was started with different input {shown}; give another folder"
    ):
        refuse_difference(RECORD, {**RECORD, **change}, "here")
    refuse_difference(RECORD, json.loads(json.dumps(RECORD)), "here")


def source_file(label: str, **changes: Any) -> dict[str, Any]:
    return {"label": label, "uri": f"/data/{label}", "kind": "jsonl", "size": 1200, "mtime_ns": 10**18, **changes}


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ([source_file("a")], r"b is gone: 1,200 bytes of 2001-09-09T01:46:40.000Z"),
        (
            [source_file("a"), source_file("b"), source_file("c", size=7)],
            r"c is new: 7 bytes of 2001-09-09T01:46:40.000Z",
        ),
        (
            [source_file("a"), source_file("b", size=1201, mtime_ns=10**18 + 5 * 10**6)],
            r"b changed: 1,200 bytes of 2001-09-09T01:46:40.000Z, now 1,201 bytes of 2001-09-09T01:46:40.005Z",
        ),
        ([source_file("a"), source_file("b", uri="/b")], r"b.uri: '/data/b', now '/b'"),
        ([source_file("b"), source_file("a")], r"the order of the source's files: \['a', 'b'\], now \['b', 'a'\]"),
    ],
)
def test_what_changed_of_a_source_is_named(files: list[dict[str, Any]], shown: str) -> None:
    """Fails when both sides of a difference are cut to the same text: of many files nobody could see which changed."""
    record = {**RECORD, "files": [source_file("a"), source_file("b")]}
    with pytest.raises(ConfigError, match=rf"was started with different input \({shown}\); give another folder"):
        refuse_difference(record, {**record, "files": files}, "here")


def test_long_values_are_shown_where_they_differ() -> None:
    """Fails when the shown part of two long values is the same."""
    with pytest.raises(ConfigError) as caught:
        refuse_difference({"pattern": "x" * 500 + "1"}, {"pattern": "x" * 500 + "2"}, "here")
    assert "xx1', now ..." in str(caught.value)
    assert "xx2')" in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_new_folder_is_claimed_once_and_counts_its_runs(tmp_path: Path) -> None:
    """Fails when a run forgets those before it, or what lay in the work folder of nobody is taken for ours."""
    folder, notes = Folder(str(tmp_path)), Notes()
    (tmp_path / ".work").mkdir()
    (tmp_path / ".work" / "measured").write_text("of no job on record")
    for run in range(1, 4):
        with claimed(folder, RECORD, notes) as claim:  # type: ignore[arg-type]
            assert len(claim.attempts) == run
            assert claim.attempts[-1]["pid"] == os.getpid()
            assert claim.attempts[-1]["started"].endswith("Z")
            assert json.loads((tmp_path / ".work" / "job.json").read_bytes()) == RECORD
            claim.check()
            assert (tmp_path / ".work" / "lock").exists()
        assert not (tmp_path / ".work" / "measured").exists()
    (tmp_path / ".tmp-half").write_text("half")
    with claimed(folder, RECORD, notes):  # type: ignore[arg-type]
        assert not (tmp_path / ".tmp-half").exists()
    assert not notes
    with (
        pytest.raises(ConfigError, match="version: '1', now '2'"),
        claimed(folder, {**RECORD, "version": "2"}, notes),  # type: ignore[arg-type]
    ):
        pass


def test_a_folder_with_anything_else_is_nobodys(tmp_path: Path) -> None:
    """Fails when a file deep in a folder is mixed with a dataset, or empty folders are taken for somebody's work."""
    (tmp_path / "empty" / "too").mkdir(parents=True)
    (tmp_path / ".gitattributes").write_text("*.tar filter=lfs")  # as in a new repository of the Hub
    with claimed(Folder(str(tmp_path)), RECORD, Notes()):  # type: ignore[arg-type]
        pass
    (tmp_path / ".work" / "job.json").unlink()
    (tmp_path / "empty" / "too" / "notes.txt").write_text("mine")
    with (
        pytest.raises(ConfigError, match=r"holds empty/too/notes\.txt, which no preshard job wrote"),
        claimed(Folder(str(tmp_path)), RECORD, Notes()),  # type: ignore[arg-type]
    ):
        pass


def test_a_folder_in_use_is_named(tmp_path: Path) -> None:
    """Fails when two jobs write into a folder at once, or the refusal does not name it."""
    folder = Folder(str(tmp_path))
    with (
        locked(folder / ".work"),
        pytest.raises(FolderInUseError, match=f"--out {tmp_path}: .*another job is writing here"),
        claimed(folder, RECORD, Notes()),  # type: ignore[arg-type]
    ):
        pass


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_a_full_disk_is_not_a_wrong_folder(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a full disk is reported as a folder that cannot be written, or the other way round."""

    @contextmanager
    def failing(folder: Folder) -> Iterator[bool]:
        raise OSError(code, os.strerror(code))
        yield True

    monkeypatch.setattr("preshard.packer_service.job.ownership.locked", failing)
    full = code in (errno.ENOSPC, errno.EDQUOT)
    said = os.strerror(code) if full else f"cannot be written .{os.strerror(code)}"
    with (
        pytest.raises(OSError if full else ConfigError, match=said),
        claimed(Folder(str(tmp_path)), RECORD, Notes()),  # type: ignore[arg-type]
    ):
        pass


def test_a_filesystem_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a folder that nothing guards looks guarded."""

    @contextmanager
    def unlocked(folder: Folder) -> Iterator[bool]:
        Path(folder.path("")).mkdir(exist_ok=True)
        yield False

    monkeypatch.setattr("preshard.packer_service.job.ownership.locked", unlocked)
    notes = Notes()
    with claimed(Folder(str(tmp_path)), RECORD, notes):  # type: ignore[arg-type]
        pass
    assert len(notes) == 1
    assert "has no locks" in notes[0]


@pytest.fixture
def finished(tiny_dataset: Path, tmp_path: Path) -> tuple[Folder, dict[str, Any]]:
    """A copy of a whole dataset, and the record of its job."""
    copy = shutil.copytree(tiny_dataset, tmp_path / "dataset")
    return Folder(str(copy)), json.loads((copy / "run.json").read_bytes())["job"]


def test_a_whole_dataset_is_recognised_and_cleared(finished: tuple[Folder, dict[str, Any]]) -> None:
    """Fails when a job that has finished starts again, or what a killed run left stays in the dataset."""
    folder, record = finished
    (folder / ".work").write("attempts.json", b"[]")
    manifest = finished_before(folder, record)
    assert manifest is not None
    assert manifest.counts.packs > 1
    assert not (folder / ".work").exists()
    assert finished_before(folder, record) == manifest
    with pytest.raises(ConfigError, match="version"):
        finished_before(folder, {**record, "version": "0"})
    with pytest.raises(ConfigError, match=rf"plan: None, now {PLAN}"):
        refuse_difference({name: value for name, value in record.items() if name != "plan"}, record, "here")
    with locked(folder / ".work"):
        assert finished_before(folder, record) == manifest
        assert (folder / ".work").exists(), "a run that is about to end holds it"


def test_a_folder_without_a_manifest_is_not_finished(tmp_path: Path) -> None:
    assert finished_before(Folder(str(tmp_path)), RECORD) is None


def test_a_dataset_without_its_run_is_nobodys(finished: tuple[Folder, dict[str, Any]]) -> None:
    """Fails when a dataset whose job is not known is taken for ours."""
    folder, record = finished
    folder.delete("run.json")
    with pytest.raises(ConfigError, match=r"without run\.json"):
        finished_before(folder, record)


@pytest.mark.parametrize(
    "name",
    ["packs.parquet", "rejects.parquet", "shards/preshard-000000.tar", "shards/preshard-000001.tar.idx"],
)
@pytest.mark.parametrize("damage", ["gone", "longer", "shorter"])
def test_a_file_that_is_not_what_the_manifest_says_is_named(
    name: str, damage: str, finished: tuple[Folder, dict[str, Any]]
) -> None:
    """Fails when a dataset that has lost a file, or a part of one, passes for done."""
    folder, record = finished
    path = Path(folder.path(name))
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data + b"\0" if damage == "longer" else data[:-1])
    found = "is missing" if damage == "gone" else f"has {path.stat().st_size} bytes, not {len(data)}"
    with pytest.raises(PreshardError, match=f"was whole, but {name} {found}"):
        finished_before(folder, record)

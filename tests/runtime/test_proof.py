"""Proof that a worker gives before its first task."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from preshard.packer_service.ingest.source.forms.custom import source_hash
from preshard.packer_service.runtime import proof as proving
from preshard.packer_service.runtime.proof import Code, Place, Proof, make_proof
from preshard.schemas import VERSION


@pytest.fixture
def whole(tmp_path: Path) -> Proof:
    """The proof of a job with a model and a folder of media, as its driver made it."""
    for name in ("model/config.json", "media/images/a.png", "rows.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    places = [
        Place(item=item, location=str(tmp_path / name), remedy="mount it there")
        for item, name in (("SOURCE", "rows.jsonl"), ("--media-root", "media"), ("model", "model"))
    ]
    return make_proof("OUT", str(tmp_path / "out" / "nodes"), places)


def test_a_node_that_is_the_same_leaves_its_file(whole: Proof) -> None:
    """Fails when a healthy node is refused, or the driver does not see that they share the output."""
    assert whole.fault("one") is None
    assert whole.is_seen("one")


def with_software(name: str) -> Callable[[Proof, Path], Proof]:
    """A proof by a driver that has another version."""
    return lambda whole, _: replace(
        whole, software=tuple((each, "0.1" if each == name else value) for each, value in whole.software)
    )


def without(name: str) -> Callable[[Proof, Path], Proof]:
    """A node on which a file or all that a folder holds is not there."""

    def remove(whole: Proof, folder: Path) -> Proof:
        target = folder / name
        for path in sorted(target.rglob("*"), reverse=True) if target.is_dir() else [target]:
            path.rmdir() if path.is_dir() else path.unlink()
        return whole

    return remove


FAULTS = {
    "preshard": (
        with_software("preshard"),
        f"preshard {VERSION}, the driver has 0.1; run on it: pip install 'preshard==0.1'",
    ),
    "code": (with_software("code"), f"preshard {VERSION} with other code (SHA-256 "),
    "pillow": (with_software("pillow"), "pillow 1"),
    "Python": (with_software("Python"), "Python 3."),
    "output": (without("out/nodes"), "--out OUT: is not the folder that the driver sees; give a folder that all nodes"),
    "source": (without("rows.jsonl"), "SOURCE {}/rows.jsonl: is not there, though the driver sees it; mount it there"),
    "media": (without("media/images"), "--media-root {}/media/images/a.png: is not there"),
    "model": (without("model"), "model {}/model/config.json: is not there"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_node_that_differs_says_what_and_how_to_mend_it(kind: str, whole: Proof, tmp_path: Path) -> None:
    """Fails when a node would pack its rows in another way, or reject them, without a word; a folder that is not
    mounted is there, and empty."""
    spoil, said = FAULTS[kind]
    fault = spoil(whole, tmp_path).fault("one")
    assert fault is not None
    assert fault.startswith(said.format(tmp_path))
    assert "\n" not in fault


def test_a_form_of_another_file_is_a_fault(whole: Proof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a node imports another file of the user's form than the driver, or none."""
    file = tmp_path / "form_of_a_proof.py"
    file.write_text("def parse(row): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "form_of_a_proof:parse"
    code = Code(item=f"--form {name}", hash_it=partial(source_hash, name), sha256=source_hash(name))
    given = replace(whole, code=(code,))
    assert given.fault("one") is None
    file.write_text("def parse(row): return row\n")
    said = f"--form {name}: its file is another there (SHA-256 "
    assert (given.fault("one") or "").startswith(said)
    missing = replace(code, hash_it=partial(source_hash, "no_module_of_a_proof:parse"))
    assert "ModuleNotFoundError" in (replace(whole, code=(missing,)).fault("one") or "")


def test_what_only_the_worker_sees_is_a_fault(whole: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a folder of the same name on a worker's own disk is taken for the output."""
    monkeypatch.setattr(proving, "SEEN_SECONDS", 0.0)
    assert not whole.is_seen("one")
    assert whole.unseen.startswith("--out OUT: what is written there is not seen by the driver; give a folder")


def test_a_full_folder_for_temporary_files_is_a_fault(whole: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a node without room for temporary files takes a task and fails it, again and again."""

    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    said = "its folder for temporary files cannot be written ([Errno 28] No space left on device); make room, or"
    assert (whole.fault("one") or "").startswith(said)


def test_files_that_come_later_are_no_fault(whole: Proof, tmp_path: Path) -> None:
    """Fails when a source that grows while it is packed ends the job."""
    (tmp_path / "media" / "later.png").write_text("")
    assert whole.fault("one") is None

"""Installations of `make test-matrix`: those that the project says that it runs with."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from scripts import load_script

REPOSITORY = Path(__file__).parents[2]


def test_the_oldest_and_the_newest_versions_are_run() -> None:
    """Fails when pyproject.toml allows an older version than any that is tested, or `make` installs a newer one."""
    table = tomllib.loads((REPOSITORY / "tests/matrix/versions.toml").read_text(encoding="utf-8"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"]["train"])]
    pinned = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for name in ("torch", "transformers"):
        tested = sorted(map(Version, table[name]))
        [oldest] = [each.version for one in asked if one.name == name for each in one.specifier]
        assert tested[0] == Version(oldest)
        assert f"{name}=={tested[-1]}" in pinned


def test_its_lists_name_what_is_there() -> None:
    """Fails when tests move or are renamed, and the table still runs them or leaves them out."""
    table = tomllib.loads((REPOSITORY / "tests/matrix/versions.toml").read_text(encoding="utf-8"))
    places = {
        *table["tests"],
        *table["pythons"]["tests"],
        *(test for trainer in table["trainers"].values() for test in trainer["tests"]),
    }
    assert [place for place in places if not (REPOSITORY / place).exists()] == []
    files = [path for place in table["tests"] for path in (REPOSITORY / place).rglob("*.py")]
    names = "".join(f"{path.stem}\n{path.read_text(encoding='utf-8')}" for path in files)
    versions = [version for name in ("torch", "transformers") for version in table[name].values()]
    words = {part for each in versions for word in each.get("without", "").split(" or ") for part in word.split("-")}
    assert [word for word in words if not re.search(word, names)] == []


@pytest.mark.process
def test_its_smallest_case_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fails when its way to run tests of one environment does not, or counts them wrongly."""
    matrix = load_script(REPOSITORY / "tests/matrix/run.py")
    monkeypatch.setattr(matrix, "FOLDER", tmp_path)
    monkeypatch.setenv("WORKERS", "0")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # its pytest is no worker of this one's
    tests = ["tests/trainer/data/test_order.py"]
    said, good = matrix.run("smallest", Path(sys.executable), tests, "fewer_packs or reads_its")
    assert good
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed, 0 skipped, .* min", said)

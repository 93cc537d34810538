"""The guard, the groups and the folders of the tests themselves."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kinds import FIRST, PROCESS_FOLDERS, SLOW_ALONE, Guard, group_of
from once import MadeOnce

REPOSITORY = Path(__file__).parents[2]


class Unmarked:
    """A test without marks."""

    def get_closest_marker(self, name: str) -> None: ...


def spawn() -> None:
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()


@pytest.mark.process
@pytest.mark.parametrize(
    "start", [spawn, lambda: subprocess.run([sys.executable, "-c", ""], check=True)], ids=["spawn", "subprocess"]
)
def test_a_test_that_starts_a_process_without_the_mark_fails(start: Callable[[], Any]) -> None:
    """Fails when `make check` could come to start processes, because the guard no longer sees a way to start one."""
    guard, unmarked = Guard(), Unmarked()
    with pytest.raises(pytest.fail.Exception, match="kinds"), guard.watch(unmarked), suppress(RuntimeError):  # type: ignore[arg-type]
        start()
    start()  # outside of a test nothing is refused


def test_the_lists_name_folders_and_files_that_exist() -> None:
    """Fails when tests move and their place in a list stays behind."""
    places = [*PROCESS_FOLDERS, *(first for first in FIRST if "/" in first)]
    assert [place for place in places if not list(REPOSITORY.glob(f"{place}*"))] == []


def test_every_file_of_slow_tests_has_one_that_is_not(pytestconfig: pytest.Config) -> None:
    """Fails when a grid has no part in `make test`, so that it can break unnoticed until someone runs all of it."""
    # Folders that hang are waited for most of a minute; tests/http/test_processes.py has a slow look in make test.
    assert pytestconfig.stash[SLOW_ALONE] - {Path(__file__).parents[1] / "s3/test_serve.py"} == set()


def test_tests_that_share_a_costly_fixture_share_a_worker() -> None:
    """Fails when two workers would each start Ray, a pool of ranks or a browser."""
    groups = {group_of(f"tests/{name}.py::test_a", {"tmp_path", "ray_session"}) for name in "ab"}
    assert groups == {"ray"}
    assert group_of("tests/a.py::test_a", {"gloo_pool"}) == "gloo"
    assert group_of("tests/trainer/models/a.py::test_a", {"gloo_pool"}) == "gloo-apart"
    assert group_of("tests/trainer/models/a.py::test_a", set()) == "tests/trainer/models/a.py"
    assert group_of("tests/browser/test_a.py::test_a", {"reader", "browser"}) == "browser"
    assert group_of("tests/a.py::test_a[1]", {"tmp_path"}) == "tests/a.py"


def test_a_folder_is_made_once_for_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when each worker packs a dataset of its own, or one reads what another has not finished."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("whole")

    def ask(number: int) -> str:
        (tmp_path / f"worker-{number}").mkdir()
        return (MadeOnce(tmp_path / f"worker-{number}")("name", make) / "file").read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == ["whole"] * 4
    assert len(made) == 1


def test_what_failed_half_way_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a worker takes over a folder that another could not finish."""

    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    once = MadeOnce(tmp_path)

    def broken(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyError

    with pytest.raises(KeyError):
        once("name", broken)
    folder = once("name", lambda folder: (folder / "whole").touch())
    assert [file.name for file in folder.iterdir()] == ["whole"]

"""Kinds of tests: which start processes, which run in one worker, and in what order.

A test gets the mark ``process`` from the folder it lies in, from a fixture it uses, or, alone among others that start
none, by hand. ``make check`` leaves those tests out. Any other test that starts a process fails, so the lists cannot
fall behind.
"""

from __future__ import annotations

import multiprocessing.util
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

PROCESS_FOLDERS = (
    "tests/benchmarks",
    "tests/browser",
    "tests/cluster",
    "tests/corrupt",
    "tests/demo",
    "tests/docs/test_layouts",
    "tests/docs/test_pages",
    "tests/docs/test_shell",
    "tests/golden",
    "tests/hostile",
    "tests/http",
    "tests/ingest/families",
    "tests/ingest/text/test_chat_oracle",
    "tests/install/test_bare",
    "tests/install/test_names",
    "tests/interop",
    "tests/job",
    "tests/k8s",
    "tests/plan/test_blend",
    "tests/runtime",
    "tests/s3",
    "tests/test_api.py",
    "tests/test_cli.py",
    "tests/test_packing.py",
    "tests/trainer/test_imports",
    "tests/trainer/training",
    "tests/verify",
)
"""Folders, and files by their beginning, whose tests start processes, read what was packed with some, or take long."""

PROCESS_FIXTURES = {
    "demo",
    "demo_dataset",
    "gloo_pool",
    "packed",
    "packed_in_tiles",
    "ray_session",
    "texts",
    "tiny_dataset",
    "wheel",
}
"""Fixtures that start processes. Packing is one of them, since media are decoded in a process of their own."""

GROUPS = {"ray_session": "ray", "gloo_pool": "gloo", "browser": "browser"}
"""Fixtures too costly to have in every worker, and the group of tests that share one."""

APART = {"gloo": "tests/trainer/models"}
"""Groups that took longer than all other workers, and the folder whose tests are a group of their own."""

FIRST = (
    "gloo",
    "ray",
    "tests/cluster",
    "tests/runtime",
    "tests/trainer/training",
    "browser",
    "tests/trainer/extra",
    "tests/trainer/models",
    "tests/trainer/attention",
    "tests/hostile",
    "tests/job",
    "tests/corrupt",
    "tests/interop",
    "tests/s3",
    "tests/http",
    "tests/docs",
    "tests/k8s",
    "tests/install",
    "tests/ingest/families",
    "tests/ingest/text",
)
"""Groups that take longest, in the order in which workers take them: the short ones fill the gaps at the end."""

SLOW_ALONE: pytest.StashKey[set[Path]] = pytest.StashKey()
"""Files, of those that were collected, whose tests are all slow."""

STARTS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "system")),
    (subprocess.Popen, "_execute_child"),
    (multiprocessing.util, "spawnv_passfds"),
)
"""Functions by which Python starts a process, where whoever calls them finds them.

An audit hook would hear them all, and every file, import and compiled module besides: 13 s of a run.
"""


def mark(items: Sequence[pytest.Item]) -> None:
    """Gives each test its mark and its group."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.nodeid.startswith(PROCESS_FOLDERS) or fixtures & PROCESS_FIXTURES:
            item.add_marker(pytest.mark.process)
        item.add_marker(pytest.mark.xdist_group(group_of(item.nodeid, fixtures)))


def lies_in_process_folder(path: Path, repository: Path) -> bool:
    """Whether all tests of a file or folder get the mark by where they lie."""
    return path.is_relative_to(repository) and str(path.relative_to(repository)).startswith(PROCESS_FOLDERS)


def group_of(nodeid: str, fixtures: set[str]) -> str:
    """Tests of one group run in one worker, one after the other: those that share a costly fixture, or a file."""
    shared = [group for fixture, group in GROUPS.items() if fixture in fixtures]
    if not shared:
        return nodeid.partition("::")[0]
    is_apart = shared[0] in APART and nodeid.startswith(APART[shared[0]])
    return f"{shared[0]}-apart" if is_apart else shared[0]


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts tests by their groups, in place; within a group they keep their order."""

    def place(item: pytest.Item) -> int:
        [group] = [one.args[0] for one in item.iter_markers("xdist_group")]
        return next((number for number, first in enumerate(FIRST) if group.startswith(first)), len(FIRST))

    items.sort(key=place)


def is_last_of_group(name: str, item: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether no further test of a group runs in this worker. Without workers they come in any order."""

    def is_member(one: pytest.Item) -> bool:
        return any(mark.args == (name,) for mark in one.iter_markers("xdist_group"))

    return "PYTEST_XDIST_WORKER" in os.environ and is_member(item) and not (following and is_member(following))


class Guard:
    """Fails a test that starts a process and is not marked as one that does."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._watching = False
        self._started: list[str] = []
        for owner, name in STARTS:
            setattr(owner, name, self._heard(name, getattr(owner, name)))

    def _heard(self, name: str, start: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(start)
        def heard(*given: Any, **named: Any) -> Any:
            if self._watching and os.getpid() == self._pid:
                self._started.append(f"{name} {given[:2]}")
                raise RuntimeError(f"a test without the mark `process` starts a process: {name} {given[:2]}")
            return start(*given, **named)

        return heard

    @contextmanager
    def watch(self, item: pytest.Item) -> Iterator[None]:
        """Watches for processes while a step of a test runs."""
        self._watching, self._started = item.get_closest_marker("process") is None, []
        try:
            yield
        finally:
            self._watching = False
        if self._started:  # the error itself may have been caught on its way
            pytest.fail(f"starts a process that tests/support/kinds.py does not know of: {self._started[0]}")

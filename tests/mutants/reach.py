"""Which functions of ours each test runs, and how long it takes: a mutant meets only tests that run its function."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from scratch import SOURCES

EVERYWHERE = "*"
"""Stands for every function: of a test that has other processes run ours, where nothing is traced."""

UNTRACED = {"gloo_pool"}
"""Fixtures with which a test does so."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What one test runs."""

    functions: frozenset[str]
    """Each as ``file::qualified name`` of the outermost function; what runs inside of it counts as its part."""

    seconds: float
    """Processor time, with the fixtures that it asks for."""

    passed: bool
    """Whether it passes without a mutant, in time; one that does not can kill nothing here."""


class TooSlowError(BaseException):
    """No Exception, so that neither a test nor hypothesis takes it for a failure of its own."""


class Recorder:
    """Functions that run, by the tracing of Python's calls; lines are not traced, which would be slow in loops."""

    def __init__(self, root: Path) -> None:
        self._root = str(root) + "/"
        self._codes: dict[int, CodeType] = {}
        self._depth = 0
        self.fixtures: dict[str, set[str]] = defaultdict(set)
        self.fixture_seconds: dict[str, float] = {}

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> None:
        self._codes[id(frame.f_code)] = frame.f_code

    @contextmanager
    def record(self) -> Iterator[set[str]]:
        """The functions that run within, once it is left; fixtures record within tests."""
        functions: set[str] = set()
        outer, self._codes = self._codes, {}
        self._depth += 1
        sys.settrace(self._trace)
        threading.settrace(self._trace)
        try:
            yield functions
        finally:
            self._depth -= 1
            ran = list(self._codes.values())  # this, too, is traced
            functions |= {self._name(code) for code in ran if code.co_filename.startswith(self._root)}
            self._codes = {**outer, **self._codes}
            if not self._depth:
                self._codes = {}
                sys.settrace(None)
                threading.settrace(None)  # type: ignore[arg-type]

    def _name(self, code: CodeType) -> str:
        return function_name(code.co_filename.removeprefix(self._root), code)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """What a fixture runs is part of all tests that ask for it, though only the first one sets it up."""
        began = time.process_time()
        with self.record() as functions:
            result = yield
        self.fixtures[fixturedef.argname] |= functions
        taken = time.process_time() - began
        self.fixture_seconds[fixturedef.argname] = max(taken, self.fixture_seconds.get(fixturedef.argname, 0))
        return result


def function_name(file: str, code: CodeType) -> str:
    return f"{file}::{code.co_qualname.partition('.<locals>')[0]}"


def reach_of(items: Sequence[pytest.Item], root: Path, longest: float) -> dict[str, Reach]:
    """Runs tests, each for so many seconds of processor time at most, and says what each of them reaches."""
    recorder, failures = Recorder(root), Failures()
    manager = items[0].config.pluginmanager
    manager.register(recorder)
    manager.register(failures)
    signal.signal(signal.SIGPROF, _give_up)
    own: dict[str, tuple[set[str], float, bool]] = {}
    for item, following in zip(items, [*items[1:], None], strict=True):
        failures.found.clear()
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, longest)
        try:
            with recorder.record() as functions:
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        except TooSlowError:
            failures.found.append((item.nodeid, "TooSlowError"))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        own[item.nodeid] = functions, time.process_time() - began, not failures.found
    return {item.nodeid: _with_fixtures(item, *own[item.nodeid], recorder) for item in items}


def _with_fixtures(item: pytest.Item, functions: set[str], seconds: float, passed: bool, recorder: Recorder) -> Reach:
    asked = [name for name in getattr(item, "fixturenames", ()) if name in recorder.fixtures]
    reached = functions.union(*(recorder.fixtures[name] for name in asked))
    longest = max((recorder.fixture_seconds[name] for name in asked), default=0)
    if not UNTRACED.isdisjoint(getattr(item, "fixturenames", ())):
        reached.add(EVERYWHERE)
    return Reach(functions=frozenset(reached), seconds=max(seconds, longest), passed=passed)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TooSlowError


class Failures:
    """Tests that failed, each with the name of what it raised."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        if report.failed:
            self.found.append((item.nodeid, call.excinfo.typename if call.excinfo else ""))
        return report


class ReachTable:
    """What tests reach, kept in a file beside the tree as long as neither they nor what they test change."""

    def __init__(self, root: Path) -> None:
        self._path, self._root = root.parent / "reach.json", root
        sources = sorted(path for name in SOURCES for path in (root / name).rglob("*.py"))
        self._digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
        self._kept: dict[str, Any] = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}

    def known(self, nodeids: Sequence[str]) -> dict[str, Reach]:
        """Of those tests that have been traced as they are."""
        current = [name for name in nodeids if self._kept.get(name, {}).get("of") == self._state(name)]
        return {
            name: Reach(**{**self._kept[name]["reach"], "functions": frozenset(self._kept[name]["reach"]["functions"])})
            for name in current
        }

    def keep(self, reached: dict[str, Reach]) -> None:
        for name, reach in reached.items():
            row = {**asdict(reach), "functions": sorted(reach.functions)}
            self._kept[name] = {"of": self._state(name), "reach": row}
        self._path.write_text(json.dumps(self._kept), encoding="utf-8")

    def _state(self, nodeid: str) -> str:
        test = (self._root / nodeid.partition("::")[0]).read_bytes()
        return self._digest + hashlib.sha256(test).hexdigest()

"""The quick judge: tests are collected once, and each mutant meets those that reach it in a fork of that process.

Loops are interpreted there, since Numba would take seconds to compile them anew for every mutant. Who survives here has
not survived yet: see scratch.py for the judge that is sure.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from patch import changed_functions, replace_functions
from reach import Failures, Reach, ReachTable, function_name, reach_of

FACTOR, SLACK = 3, 12
"""A test may take this many times what it takes without a mutant, and these seconds of processor time more."""

WAITING = 60
"""Times as long by the clock as by processor time, so that a busy machine kills no mutant; one that waits ends too."""

LONGEST_INTERPRETED, LONGEST = 4, 300
"""Seconds of processor time that a test may take while it is traced. In the second case it may have to compile."""

MEMORY = 8 << 30
"""Bytes that a mutant may ask for."""

UNSURE = ("IndexError", "OverflowError")
"""What an interpreted loop raises where the compiled one may read past an array or go on: not a kill by itself."""

TIME_OUT, WAITED, ENDED = "took too long", "waited too long", "ended with"
"""Answers for a fork that gave none. Only the first one, which is by processor time, says that a mutant was noticed."""

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A file with a mutant, as it was and as it is."""

    file: str
    before: str
    after: str


class QuickJudge:
    """A process that has collected the tests of a room, and forks for each mutant."""

    def __init__(
        self, tree: Path, longest: float, tests: Sequence[str], start: Callable[[Sequence[str], object], None]
    ) -> None:
        """``start(tests, plugin)`` runs pytest in the tree, in the process that it is called in."""
        self._pipe, theirs = FORK.Pipe()
        self._process = FORK.Process(target=start, args=(tests, _Server(tree, longest, theirs)))
        self._process.start()
        theirs.close()
        self.reached: dict[str, Reach] = {}
        """What each test runs of those that start no process; there may be none."""
        with suppress(EOFError):
            self.reached = self._pipe.recv()

    def judge(self, planted: Planted, tests: Sequence[str]) -> str | None:
        """The test that kills a mutant, of those given and in this order."""
        self._pipe.send((planted, tests))
        answer: str | None = self._pipe.recv()
        return answer

    def close(self) -> None:
        if self.reached:
            self._pipe.send(None)
        self._process.join()


class _Server:
    """Takes the place of pytest's loop over tests."""

    def __init__(self, tree: Path, longest: float, pipe: Connection) -> None:
        self._tree, self._longest, self._pipe = tree, longest, pipe
        self._items: dict[str, pytest.Item] = {}
        self._reached: dict[str, Reach] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        self._reached = self._trace()
        self._pipe.send(self._reached)
        while (task := self._pipe.recv()) is not None:
            self._pipe.send(self._in_fork(self._judge, self._wait(task[1]), *task))
        return True

    def _trace(self) -> dict[str, Reach]:
        table = ReachTable(self._tree)
        known = table.known(list(self._items))
        new = [item for name, item in self._items.items() if name not in known]
        if new:
            found = self._in_fork(reach_of, None, new, self._tree, self._longest)
            assert isinstance(found, dict), f"tests without a mutant: {found}"
            table.keep(found)
            known |= found
        return known

    def _limit(self, test: str) -> float:
        return FACTOR * self._reached[test].seconds + SLACK

    def _wait(self, tests: Sequence[str]) -> float:
        return WAITING * sum(map(self._limit, tests))

    def _judge(self, planted: Planted, tests: Sequence[str]) -> str | None:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        path = self._tree / planted.file
        pairs = changed_functions(planted.before, planted.after, str(path))
        if not pairs or not replace_functions(path, pairs):
            return None
        failures = Failures()
        items = [self._items[test] for test in tests]
        items[0].config.pluginmanager.register(failures)
        for item, following in zip(items, [*items[1:], None], strict=True):
            signal.setitimer(signal.ITIMER_PROF, self._limit(item.nodeid))  # whose signal ends the process
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if failures.found and failures.found[-1][1] not in UNSURE:
                break
        return " ".join(failures.found[-1]) if failures.found else None

    def _in_fork(self, function: Callable[..., Any], wait: float | None, *args: Any) -> Any:
        """What a function returns in a fork; how it ended, where it returned nothing."""
        ours, theirs = FORK.Pipe(duplex=False)
        child = FORK.Process(target=_answer, args=(theirs, function, args))
        child.start()
        theirs.close()
        try:
            error, answer = ours.recv() if ours.poll(wait) else (None, WAITED)
        except EOFError:
            child.join()
            error, answer = None, TIME_OUT if child.exitcode == -signal.SIGPROF else f"{ENDED} {child.exitcode}"
        if child.pid:
            with suppress(ProcessLookupError):  # where all of them have ended
                os.killpg(child.pid, signal.SIGKILL)
        child.join()
        if error:
            raise RuntimeError(f"no test, but what runs it, failed:\n{error}")
        return answer


def _answer(pipe: Connection, function: Callable[..., Any], args: Sequence[Any]) -> None:
    os.setsid()
    try:
        pipe.send((None, function(*args)))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
    os._exit(0)


def functions_changed(planted: Planted) -> list[str] | None:
    """Names of the functions that differ, as tests reach them; None where something else differs, too."""
    pairs = changed_functions(planted.before, planted.after, planted.file)
    return None if not pairs else [function_name(planted.file, old) for old, _ in pairs]

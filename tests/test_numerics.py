"""Kernels compile whether or not the machine keeps a cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numba.core.caching
import pytest

from preshard.packer_service.numerics import compiled, hear_of_compiling
from preshard.packer_service.runtime.progress import COMPILING, ConsoleProgress

ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


RUNS = """
import importlib, json, os, pathlib, sys, preshard.packer_service.numerics

for factor, name in json.loads(sys.argv[1]):
    pathlib.Path("called.py").write_text(f'''
from typing import NamedTuple
from preshard.packer_service.numerics import compiled

class {name}(NamedTuple):
    value: int

@compiled
def scale(given):
    return given.value * {factor}
''')
    pathlib.Path("calls.py").write_text('''
from called import scale
from preshard.packer_service.numerics import compiled

@compiled
def run(given):
    return scale(given)
''')
    os.utime("calls.py", (1e9, 1e9))
    if (child := os.fork()) == 0:
        importlib.invalidate_caches()
        import called, calls
        print(calls.run(getattr(called, name)(21)), len(calls.run.stats.cache_hits), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Runs a loop of one file that calls that of another, each time in a process of its own; Numba is imported once. Prints
the value, and how much of the loop came from the cache."""


def doubled(value: int) -> int:
    return 2 * value


@pytest.mark.parametrize("writable", [True, False])
def test_compiles_whether_or_not_a_cache_can_be_written(monkeypatch: pytest.MonkeyPatch, writable: bool) -> None:
    """Fails when importing the planner raises on a read-only image without a home."""
    if not writable:
        monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
        with pytest.raises(RuntimeError, match="cannot cache"):
            numba.njit(cache=True)(doubled)
    assert compiled(doubled)(21) == 42


def test_loops_can_be_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when ``NUMBA_DISABLE_JIT=1``, under which Numba gives functions back as they are, ends every plan."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    assert compiled(doubled) is doubled


@pytest.mark.process
def test_an_update_runs_nothing_that_it_replaces(tmp_path: Path) -> None:
    """Fails when a cached loop outlives what it calls, or the name of a type that it takes, in another file."""

    runs = [(2, "Given"), (2, "Given"), (3, "Given"), (3, "Renamed")]
    # Without bytecode, which Python takes for fresh where a file of the same size changes in the same second.
    command = [sys.executable, "-B", "-c", RUNS, json.dumps(runs)]
    said = subprocess.check_output(command, cwd=tmp_path, env=ENV, text=True).splitlines()
    assert said == ["42 0", "42 1", "63 0", "63 0"]


def test_compiling_is_heard_and_loading_from_the_cache_is_not() -> None:
    """Fails when half a minute of compiling passes in silence, or a note of it comes with every run."""

    @numba.njit
    def inner(number: int) -> int:
        return number + 1

    @numba.njit
    def outer(number: int) -> int:
        return inner(number) + 1

    heard: list[str] = []
    with hear_of_compiling(lambda: heard.append("begins"), lambda: heard.append("ends")):
        assert outer(1) == 3
        assert outer(2) == 4
    outer(1.5)
    assert heard == ["begins", "ends"]


def test_a_log_says_once_in_a_phase_why_nothing_moves(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when a log has the line for each loop, has none, or is silent while a later phase compiles."""
    progress = ConsoleProgress()
    for phase in ("planning", "writing"):
        progress.doing(phase)
        for _ in range(2):
            progress.begin_compiling()
            progress.end_compiling()
    progress.close()
    assert capsys.readouterr().err.count(COMPILING) == 2

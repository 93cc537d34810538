"""A scratch copy of the tree in which mutants live and die, each under its room's tests in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from draw import Mutant

FACTOR, SLACK = 4, 30
"""A mutant may take this many times what its tests take, and these seconds more: one that loops for ever ends then."""

WAITING = 5
"""Times as long by the clock as by processor time, so that a busy machine kills no mutant; one that waits ends too."""

FIRST_LIMIT = 1800
"""Seconds for tests that have not been timed yet, which compile their loops."""

IMPORTED_OUTSIDE = 70
BROKEN = (3, 5, IMPORTED_OUTSIDE)
"""Exit statuses that say nothing about a mutant: an error inside pytest, no test, or our code from another tree."""

SOURCES = ("schemas", "packer_service", "trainer")


class Scratch:
    """A copy of the checkout. Nothing is ever changed in the checkout itself.

    Numba keeps compiled loops by the time of change of their file alone, and compiles a called loop into its caller.
    So a mutant gets a copy of the warm cache, and every file that imports the mutated one, directly or not, a new time.
    """

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.tree, self.warm, self.cache, self.log = (folder / n for n in ("tree", "warm", "cache", "log"))
        self.bytecode = folder / "bytecode"
        self.limits: dict[tuple[str, ...], float] = {}
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=checkout, capture_output=True, check=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (checkout / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, self.tree / name)
        self.warm.mkdir(parents=True, exist_ok=True)
        self.times = {path: path.stat().st_mtime_ns for path in self._sources()}
        self.importers = self._importers()

    def limit(self, tests: Sequence[str]) -> float:
        """Seconds of processor time for tests, by what they take without a mutant once their loops are compiled.

        Raises:
            RuntimeError: they fail without a mutant.
        """
        key = tuple(tests)
        if key not in self.limits:
            for _ in range(2):
                began = time.monotonic()
                if self._run(tests, self.warm, FIRST_LIMIT) != 0:
                    raise RuntimeError(f"tests fail without a mutant:\n{self.log.read_text()[-3000:]}")
            self.limits[key] = FACTOR * (time.monotonic() - began) + SLACK
        return self.limits[key]

    def survives(self, mutant: Mutant, tests: Sequence[str]) -> bool:
        """Whether no test fails within the limit. Its own tests and single files come first: most mutants die there."""
        path, limit = self.tree / mutant.file, self.limit(tests)
        original, mutated = path.read_bytes(), mutant.apply(self.tree)
        shutil.rmtree(self.cache, ignore_errors=True)
        shutil.copytree(self.warm, self.cache)
        try:
            path.write_text(mutated, "utf-8")
            for importer in self.importers[path]:
                os.utime(importer)
            return all(self._run(part, self.cache, limit) == 0 for part in self._own_first(path, tests))
        finally:
            path.write_bytes(original)
            for changed in self.importers[path]:
                os.utime(changed, ns=(self.times[changed], self.times[changed]))

    def _own_first(self, path: Path, tests: Sequence[str]) -> list[list[str]]:
        found = (each for test in tests for each in sorted((self.tree / test).rglob(f"test_{path.stem}*.py")))
        own = [each.relative_to(self.tree).as_posix() for each in found]
        first = list(dict.fromkeys([*(test for test in tests if test.endswith(".py")), *own]))
        return [first, list(tests)] if first and first != list(tests) else [list(tests)]

    def _run(self, tests: Sequence[str], cache: Path, limit: float) -> int | None:
        """Exit status of pytest; None when it took longer and was killed, with all it had started."""
        child = multiprocessing.get_context("fork").Process(
            target=_pytest, args=(self.tree, tests, cache, self.log, self.bytecode, limit)
        )
        child.start()
        child.join(limit * WAITING)
        if child.exitcode is None and child.pid:
            os.killpg(child.pid, signal.SIGKILL)
            child.join()
            return None
        if child.exitcode in BROKEN:
            raise RuntimeError(f"pytest itself failed with {child.exitcode}:\n{self.log.read_text()[-3000:]}")
        return child.exitcode

    def _sources(self) -> list[Path]:
        return [path for name in SOURCES for path in sorted((self.tree / name).rglob("*.py"))]

    def _importers(self) -> dict[Path, set[Path]]:
        """Each source with all that import it, directly or through others, and itself."""
        names = {path.relative_to(self.tree).with_suffix("").as_posix().replace("/", "."): path for path in self.times}
        direct = {
            path: {names[name] for name in re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text("utf-8"), re.M)
                   if name in names}
            for path in self.times
        }  # fmt: skip
        found = {path: {path} for path in self.times}
        grown = True
        while grown:
            grown = False
            for path, imported in direct.items():
                for known in found.values():
                    if path not in known and imported & known:
                        known.add(path)
                        grown = True
        return found


def _pytest(tree: Path, tests: Sequence[str], cache: Path, log: Path, bytecode: Path, limit: float) -> None:
    """Runs in a fork that has imported libraries only: nothing of ours yet. Ends after `limit` of processor time."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    os.environ.update(PYTHONPATH=str(tree), PYTHONPYCACHEPREFIX=str(bytecode), NUMBA_CACHE_DIR=str(cache))
    sys.pycache_prefix = str(bytecode)
    sys.path.insert(0, str(tree))
    import numba
    import pytest

    numba.config.reload_config()
    hypothesis = ["--hypothesis-seed=0", "-p", "no:cacheprovider"]
    status = pytest.main(["-x", "-q", "--rootdir", str(tree), *hypothesis, *tests])
    loaded = {Path(str(module.__file__)) for key, module in list(sys.modules.items()) if key in SOURCES}
    outside = [path for path in loaded if not path.is_relative_to(tree)]
    sys.stdout.flush()
    os._exit(IMPORTED_OUTSIDE if outside else int(status))

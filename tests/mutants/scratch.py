"""A scratch copy of the tree in which mutants live and die, and the judge that is sure: tests in a new process."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

WAITING = 20
"""Times as long by the clock as by processor time, so that a busy machine kills no mutant; one that waits ends too."""

IMPORTED_OUTSIDE = 70
FEW_EXAMPLES = 12
"""Examples of a property where loops are interpreted, unless it asks for a number of its own."""

NO_TESTS = 5
BROKEN = (3, 4, IMPORTED_OUTSIDE)
"""Exit statuses that say nothing about a mutant: an error inside pytest, a wrong test, or our code of another tree."""

SOURCES = ("preshard/schemas", "preshard/packer_service", "preshard/trainer")
"""The rooms by the links to them, so that a file's path is its module's name."""

FORK = multiprocessing.get_context("fork")


class Scratch:
    """A copy of the checkout. Nothing is ever changed in the checkout itself.

    Numba keeps compiled loops by the time of change of their file alone, and compiles a called loop into its caller.
    So a mutant gets a copy of the warm cache, and every file that imports the mutated one, directly or not, a new time.
    """

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.tree, self.warm, self.cache, self.log = (folder / n for n in ("tree", "warm", "cache", "log"))
        self.bytecode, self.base = folder / "bytecode", folder / "tests"
        self._killer = folder / "killer"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=checkout, capture_output=True, check=True,
        )  # fmt: skip
        shutil.rmtree(self.tree, ignore_errors=True)
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (checkout / name).is_file() or (checkout / name).is_symlink():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, self.tree / name, follow_symlinks=False)
        self.warm.mkdir(parents=True, exist_ok=True)
        self.times = {path: path.stat().st_mtime_ns for path in self.sources()}
        self.importers = self._importers()
        self._seconds = itertools.count(time.time_ns(), 2 * 10**9)

    def sources(self) -> list[Path]:
        return [path for name in SOURCES for path in sorted((self.tree / name).rglob("*.py"))]

    @contextmanager
    def planted(self, file: str, text: str) -> Iterator[None]:
        """The file with a mutant's text, and a time that no other mutant had: Python keeps bytecode by seconds."""
        path = self.tree / file
        original, changed = path.read_bytes(), next(self._seconds)
        try:
            path.write_text(text, "utf-8")
            os.utime(path, ns=(changed, changed))
            yield
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(self.times[path], self.times[path]))

    def killer(
        self, file: str, tests: Sequence[str], limit: float, *, interpreted: bool = False, mark: str = ""
    ) -> str | None:
        """The test that fails with what is planted in a file, in a new process; None when none does.

        Args:
            file: the file that has been changed, from the root.
            tests: node ids or folders, in their order.
            limit: seconds of processor time that all of them may take.
            interpreted: without compiling loops.
            mark: only tests that have it.
        """
        shutil.rmtree(self.cache, ignore_errors=True)
        if not interpreted:
            shutil.copytree(self.warm, self.cache)
        importers = self.importers[self.tree / file] - {self.tree / file}
        try:
            for importer in [] if interpreted else importers:
                os.utime(importer)
            status = self._run(["-m", mark, *tests] if mark else tests, limit, interpreted)
        finally:
            for importer in importers:
                os.utime(importer, ns=(self.times[importer], self.times[importer]))
        if status in (0, NO_TESTS):
            return None
        return self._killer.read_text() if self._killer.exists() else f"exit status {status}"

    def _run(self, tests: Sequence[str], limit: float, interpreted: bool) -> int | None:
        """Exit status of pytest; None when it took longer and was killed, with all it had started."""
        self._killer.unlink(missing_ok=True)
        child = FORK.Process(target=self._child, args=(tests, limit, interpreted))
        child.start()
        child.join(limit * WAITING)
        if child.exitcode is None and child.pid:
            os.killpg(child.pid, signal.SIGKILL)
            child.join()
            return None
        if child.exitcode in BROKEN:
            raise RuntimeError(f"pytest itself failed with {child.exitcode}:\n{self.log.read_text()[-3000:]}")
        return child.exitcode

    def _child(self, tests: Sequence[str], limit: float, interpreted: bool) -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), resource.RLIM_INFINITY))
        status = self.run_pytest(tests, [_Noted(self._killer)], cache=self.cache, interpreted=interpreted)
        ours = sys.modules.get("preshard")
        os._exit(IMPORTED_OUTSIDE if ours and not Path(str(ours.__file__)).is_relative_to(self.tree) else status)

    def run_pytest(self, tests: Sequence[str], plugins: list[object], *, cache: Path, interpreted: bool) -> int:
        """Runs in a fork that has imported libraries only, and nothing of ours yet."""
        with self.log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(self.tree)
        os.environ.update(
            PYTHONPATH=str(self.tree), PYTHONPYCACHEPREFIX=str(self.bytecode), NUMBA_CACHE_DIR=str(cache),
            NUMBA_DISABLE_JIT=str(int(interpreted)), HYPOTHESIS_STORAGE_DIRECTORY=str(self.base / "examples"),
        )  # fmt: skip
        sys.pycache_prefix = str(self.bytecode)
        sys.path.insert(0, str(self.tree))
        import numba
        import pytest
        from hypothesis import HealthCheck, Phase, settings

        numba.config.reload_config()
        # Nobody reads the failing example, and shrinking it would take most of the time; the machine may be busy.
        examples = FEW_EXAMPLES if interpreted else settings.default.max_examples
        settings.register_profile(
            "mutants", max_examples=examples, phases=(Phase.explicit, Phase.generate), deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        settings.load_profile("mutants")
        options = [
            "-x",
            "-q",
            "--tb=no",
            "--rootdir",
            str(self.tree),
            "--basetemp",
            str(self.base),
            "-p",
            "no:cacheprovider",
        ]
        status = pytest.main([*options, "--hypothesis-seed=0", *tests], plugins)
        sys.stdout.flush()
        return int(status)

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


class _Noted:
    """Notes the first test that fails."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False) and not self._path.exists():
            self._path.write_text(str(getattr(report, "nodeid", "")))

    def pytest_collectreport(self, report: object) -> None:
        self.pytest_runtest_logreport(report)

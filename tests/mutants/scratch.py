"""A scratch copy of the tree in which mutants live and die, each under its room's tests in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from draw import Mutant

SOURCES = ("schemas", "packer_service", "trainer")


class Scratch:
    """A copy of the checkout. Nothing is ever changed in the checkout itself.

    Numba keeps compiled loops by the time of change of their file alone, and compiles a called loop into its caller.
    So a mutant gets a copy of the warm cache, and every file that imports the mutated one, directly or not, a new time.
    """

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.tree, self.warm, self.cache, self.log = (folder / n for n in ("tree", "warm", "cache", "log"))
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

    def baseline(self, tests: Sequence[str], limit: float) -> float:
        """Seconds of the tests without a mutant, once their loops are compiled.

        Raises:
            SystemExit: they fail.
        """
        for cache in (self.warm, self.warm):
            began = time.monotonic()
            if self._run(tests, cache, limit) != 0:
                raise SystemExit(f"tests fail without a mutant:\n{self.log.read_text()[-3000:]}")
        return time.monotonic() - began

    def survives(self, mutant: Mutant, tests: Sequence[str], limit: float) -> bool:
        """Whether no test fails within the limit."""
        path = self.tree / mutant.file
        original, mutated = path.read_bytes(), mutant.apply(self.tree)
        shutil.rmtree(self.cache, ignore_errors=True)
        shutil.copytree(self.warm, self.cache)
        try:
            path.write_text(mutated, "utf-8")
            for importer in self.importers[path]:
                os.utime(importer)
            return self._run(tests, self.cache, limit) == 0
        finally:
            path.write_bytes(original)
            for changed in self.importers[path]:
                os.utime(changed, ns=(self.times[changed], self.times[changed]))

    def _run(self, tests: Sequence[str], cache: Path, limit: float) -> int | None:
        """Exit status of pytest; None when it took longer and was killed, with all it had started."""
        child = multiprocessing.get_context("fork").Process(target=_pytest, args=(self.tree, tests, cache, self.log))
        child.start()
        child.join(limit)
        if child.exitcode is None and child.pid:
            os.killpg(child.pid, signal.SIGKILL)
            child.join()
            return None
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


def _pytest(tree: Path, tests: Sequence[str], cache: Path, log: Path) -> None:
    """Runs in a fork that has imported libraries only: nothing of ours yet."""
    os.setsid()
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    os.environ.update(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1", NUMBA_CACHE_DIR=str(cache))
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(tree))
    import numba
    import pytest

    numba.config.reload_config()
    hypothesis = ["--hypothesis-seed=0", "-p", "no:cacheprovider"]
    status = pytest.main(["-x", "-q", "--rootdir", str(tree), *hypothesis, *tests])
    loaded = {Path(str(module.__file__)) for key, module in list(sys.modules.items()) if key in SOURCES}
    outside = [path for path in loaded if not path.is_relative_to(tree)]
    sys.stdout.flush()
    os._exit(70 if outside else int(status))

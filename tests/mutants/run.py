"""Mutation testing: small faults, drawn by a seed, that the tests of their room should notice.

``python tests/mutants/run.py --count 20`` draws 20 mutants over all rooms, plants each in a scratch copy of the tree,
and prints those that survive with their difference. A mutant meets first the tests of its room that run what it
changes, as pytest-testmon has noted, and then all of them. ``equivalent.toml`` lists mutants that no test can notice,
with the reason.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draw import Mutant

CHECKOUT = Path(__file__).parents[2]

ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "schemas": (
        ["schemas/*.py"],
        [
            *("tests/schemas", "tests/verify/test_format_docs.py", "tests/layout/test_needs.py"),
            *("tests/layout/test_windows.py", "tests/trainer/data/test_errors.py"),
            "tests/docs/test_pages.py::test_the_tables_of_keys_and_options_are_made_from_the_configurations",
        ],
    ),
    "plan": (["packer_service/plan/*.py"], ["tests/plan", "tests/golden"]),
    "layout": (["packer_service/layout/**/*.py"], ["tests/layout", "tests/golden"]),
    "packs": (
        ["packer_service/packs/*.py"],
        [
            "tests/packs",
            "tests/ingest/test_render.py",
            "tests/ingest/test_oversize.py",
            "tests/job/test_preferences.py",
            "tests/job/test_packed_source.py",
            "tests/verify/test_independent.py",
        ],
    ),
    "render": (
        [
            *("packer_service/ingest/render.py", "packer_service/ingest/stream.py"),
            *("packer_service/ingest/oversize.py", "packer_service/ingest/text/encoded.py"),
            "packer_service/ingest/text/tokenizer.py",
        ],
        [
            *("tests/ingest/test_render.py", "tests/ingest/test_oversize.py", "tests/ingest/text"),
            "tests/ingest/families",
        ],
    ),
    "resume": (
        [
            *(f"packer_service/job/{name}.py" for name in ("stages", "ownership", "job_record", "finish")),
            "packer_service/job/writing/records.py",
        ],
        [
            "tests/job/test_ownership.py",
            "tests/job/test_job_record.py",
            "tests/job/test_workdir.py",
            "tests/job/test_pack.py",
            "tests/job/test_finish.py",
            "tests/job/test_finished.py",
        ],
    ),
    "reading": (["trainer/data/*.py"], ["tests/trainer/data", "tests/trainer/integrations"]),
    "attention": (["trainer/attention/**/*.py"], ["tests/trainer/attention", "tests/trainer/models/test_states.py"]),
}
"""Files, below ``preshard``, and tests of each room."""

LOOPS = ("plan", "layout")
"""Rooms with loops that Numba compiles. They are interpreted first: testmon does not see into compiled ones, and a
mutant would have them compiled anew."""

UNSURE = re.compile(r"^FAILED .* - (IndexError|OverflowError)", re.MULTILINE)
"""Errors of an interpreted loop where the compiled one may read past an array or go on: not a kill by itself."""

CHOSEN = ("--testmon", "--testmon-forceselect")
"""Tests that run what has changed, as far as they do so in their own process."""

ALONE = ("-m", "not process and not cluster and not slow")
"""Markers of the tests that run where loops are interpreted: others plan or pack too much for that."""

PASSED, FAILED, NO_TESTS = 0, (1, 2, 4), 5
"""Exit statuses of pytest; 2 and 4 where a file of tests could not be imported."""

FACTOR, SLACK, WHOLE = 3, 60, 1800
"""Tests with a mutant may take so many times what the room's take without one, and so many seconds of processor time;
and those of the whole room so many, whose others start processes."""

MEMORY = 8 << 30
"""Bytes that a process with a mutant may ask for."""


def main() -> None:
    from draw import drawn  # needs cosmic-ray, which `make test` does not install

    options = _options()
    _equivalent()  # which may end the run, before it has started any test
    mutants = drawn(CHECKOUT, _rooms(), options.count, options.seed)
    mutants = [mutant for mutant in mutants if mutant.room in (options.room or ROOMS)]
    outcomes = _logged(options.log, again=options.again)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = options.scratch or Path(folder)
        _copy_tree(scratch / "tree")
        left = [mutant for mutant in mutants if str(mutant) not in outcomes]
        for room, of_room in itertools.groupby(left, key=lambda mutant: mutant.room):
            judge = Judge(scratch, room, quick=options.quick)
            outcomes |= {str(mutant): _judged(mutant, judge, options.log) for mutant in of_room}
    _print_summary([(mutant, outcomes[str(mutant)]) for mutant in mutants])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants of all rooms together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", action="append", choices=ROOMS, help="only those drawn in this room; repeatable")
    parser.add_argument("--log", type=Path, help="appends a line of JSON for each mutant, and skips those it holds")
    parser.add_argument("--again", action="store_true", help="does not skip those that survived in the log")
    parser.add_argument("--quick", action="store_true", help="leaves out the tests that testmon does not choose")
    parser.add_argument("--scratch", type=Path, help="a folder that keeps what tests reach and what is compiled")
    return parser.parse_args()


def _rooms() -> dict[str, list[str]]:
    """The files of each room. A list that is out of date ends the run."""
    if gone := [test for _, tests in ROOMS.values() for test in tests if not (CHECKOUT / test.split("::")[0]).exists()]:
        sys.exit(f"ROOMS names tests that are gone: {', '.join(gone)}")
    return {room: _files(of) for room, (of, _) in ROOMS.items()}


def _files(patterns: Sequence[str]) -> list[str]:
    found = {pattern: sorted(CHECKOUT.glob(f"preshard/{pattern}")) for pattern in patterns}
    if gone := [pattern for pattern, paths in found.items() if not paths]:
        sys.exit(f"ROOMS names files that are gone: {', '.join(gone)}")
    return [path.relative_to(CHECKOUT).as_posix() for paths in found.values() for path in paths]


def _logged(log: Path | None, *, again: bool) -> dict[str, str]:
    """Outcomes of an earlier run of the same tree, so that a run of hours can be stopped and continued."""
    if log is None or not log.exists():
        return {}
    outcomes = {line["mutant"]: line["outcome"] for line in map(json.loads, log.read_text("utf-8").splitlines())}
    return {mutant: outcome for mutant, outcome in outcomes.items() if not again or outcome != "survived"}


def _copy_tree(tree: Path) -> None:
    """A copy of the checkout without what git ignores. Nothing is ever changed in the checkout itself."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=CHECKOUT, stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")
    for path in (CHECKOUT / name for name in names if name):
        if path.is_file() or path.is_symlink():
            copy = tree / path.relative_to(CHECKOUT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            shutil.copy2(path, copy, follow_symlinks=False)


class Judge:
    """Judges the mutants of one room in a copy of the tree.

    Args:
        scratch: has the copy, ``tree``, and takes what the tests say and reach.
        room: whose mutants.
        quick: whether only tests that testmon chooses are run.
        tests: instead of the room's.
        chosen: pytest's options by which testmon chooses.
    """

    _seconds = itertools.count(time.time_ns() // 10**9, 2)

    def __init__(
        self,
        scratch: Path,
        room: str,
        *,
        quick: bool,
        tests: Sequence[str] | None = None,
        chosen: Sequence[str] = CHOSEN,
    ) -> None:
        self._tree, self._log, self._reached = scratch / "tree", scratch / "log", scratch / f"{room}.testmon"
        self._tests, self._loops, self._quick = tests or ROOMS[room][1], room in LOOPS, quick
        self._chosen = (*chosen, *(ALONE if self._loops else ()))
        self._limit, before = WHOLE, _spent()
        if self._run(*self._chosen) not in (PASSED, NO_TESTS):
            sys.exit(f"tests of {room} fail without a mutant:\n{self._said()[-3000:]}")
        self._limit = int(FACTOR * (_spent() - before)) + SLACK

    def killer(self, file: str, text: str) -> str | None:
        """The test that kills a mutant, which is a file's other text; None where it survives."""
        with self._planted(self._tree / file, text):
            found = self._found("--testmon-nocollect", *self._chosen)
            if found and self._loops and UNSURE.search(self._said()):
                found = self._found("--testmon-nocollect", *self._chosen, compiled=True)
            return found if found or self._quick else self._found(compiled=True)

    @contextmanager
    def _planted(self, path: Path, text: str) -> Iterator[None]:
        """The file with a mutant's text, and a time that no other mutant had: Python keeps bytecode by seconds."""
        original, times, changed = path.read_bytes(), path.stat(), next(self._seconds)
        try:
            path.write_text(text, "utf-8")
            os.utime(path, (changed, changed))
            yield
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _found(self, *options: str, compiled: bool = False) -> str | None:
        status = self._run("-x", *options, compiled=compiled)
        if status in (PASSED, NO_TESTS):
            return None
        if status > 0 and status not in FAILED:
            raise RuntimeError(f"pytest itself failed with {status}:\n{self._said()[-3000:]}")
        failed = re.search(r"^(?:FAILED|ERROR) (.*)", self._said(), re.MULTILINE)
        return failed[1] if failed else f"ended with {status}"

    def _run(self, *options: str, compiled: bool = False) -> int:
        """Pytest's exit status; below zero, the signal that ended it, such as that of too much processor time."""
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "--rootdir", self._tree]
        with self._log.open("w", encoding="utf-8") as log, tempfile.TemporaryDirectory() as compiled_loops:
            environment = {
                **os.environ,
                "PYTHONPATH": str(self._tree),
                "TESTMON_DATAFILE": str(self._reached),
                "NUMBA_DISABLE_JIT": str(int(self._loops and not compiled)),
                # Numba keeps loops by the time of their own file, whatever becomes of those that they call.
                **({"NUMBA_CACHE_DIR": compiled_loops} if self._loops else {}),
            }
            process = subprocess.Popen(
                [*command, *options, *self._tests],
                cwd=self._tree,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            seconds = self._limit if "--testmon" in options else WHOLE
            for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_DATA, MEMORY)):
                resource.prlimit(process.pid, kind, (limit, resource.RLIM_INFINITY))
            status = process.wait()
        with suppress(ProcessLookupError):  # where it has left no other behind
            os.killpg(process.pid, signal.SIGKILL)
        return status

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8")


def _spent() -> float:
    """Processor seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _judged(mutant: Mutant, judge: Judge, log: Path | None) -> str:
    before, after = (CHECKOUT / mutant.file).read_text("utf-8"), mutant.apply(CHECKOUT)
    old, new = _difference(before, after)
    began = time.monotonic()
    if (mutant.file, old, new) in _equivalent():
        outcome, killer = "equivalent", None
    else:
        killer = judge.killer(mutant.file, after)
        outcome = "killed" if killer else "survived"
    print(f"{outcome} {time.monotonic() - began:.0f} s {mutant} {killer or ''}", file=sys.stderr, flush=True)
    if outcome == "survived":
        print(f"{mutant}\n- {old}\n+ {new}\n", flush=True)
    if log:
        line = {"mutant": str(mutant), "outcome": outcome, "by": killer, "before": old, "after": new}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return outcome


def _difference(before: str, after: str) -> tuple[str, str]:
    """The changed lines of both texts."""
    changed = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    old, new = ([line[2:].strip() for line in changed if line.startswith(sign)] for sign in ("- ", "+ "))
    return " ".join(old), " ".join(new)


@cache
def _equivalent() -> set[tuple[str, str, str]]:
    """File, line and changed line of each. A line that its file no longer has ends the run: its reason may not hold."""
    listed = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text("utf-8")).get("mutant", [])
    for each in listed:
        lines = (CHECKOUT / each["file"]).read_text("utf-8").splitlines()
        if each["before"].strip() not in " ".join(line.strip() for line in lines):
            sys.exit(f"equivalent.toml: {each['file']} has no line `{each['before']}` now; remove or mend the entry")
    return {(each["file"], each["before"], each["after"]) for each in listed}


def _print_summary(outcomes: list[tuple[Mutant, str]]) -> None:
    """Prints what became of the mutants of each room, and the name of each that survived, in this run or by the log."""
    for room in ROOMS:
        counts = Counter(outcome for mutant, outcome in outcomes if mutant.room == room)
        if counts:
            print(
                f"{room}: {counts.total()} drawn, " + ", ".join(f"{n} {found}" for found, n in sorted(counts.items()))
            )
    total = Counter(outcome for _, outcome in outcomes)
    judged = total["killed"] + total["survived"]
    print(f"{len(outcomes)} mutants: {total['killed']} killed, {total['survived']} survived, "
          f"{total['equivalent']} equivalent; {total['killed'] / max(judged, 1):.1%} of the others killed")  # fmt: skip
    for mutant, outcome in outcomes:
        if outcome == "survived":
            print(f"survived: {mutant}")


if __name__ == "__main__":
    main()

"""Mutation testing: small faults, drawn by a seed, that the tests of their room should notice.

``python tests/mutants/run.py --count 20`` draws 20 mutants over all rooms, runs each against the tests of its room in a
scratch copy of the tree, and prints those that survive with their difference. ``equivalent.toml`` lists mutants that no
test can notice, with the reason. Nothing here starts Ray or a browser.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from itertools import groupby
from pathlib import Path

from draw import Mutant, drawn
from judge import Judge
from quick import Planted, functions_changed
from scratch import Scratch

CHECKOUT = Path(__file__).parents[2]

ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "schemas": (
        ["schemas/*.py"],
        ["tests/schemas", "tests/verify/test_format_docs.py", "tests/layout/test_needs.py"],
    ),
    "plan": (["packer_service/plan/*.py"], ["tests/plan", "tests/golden/test_plans.py"]),
    "layout": (["packer_service/layout/**/*.py"], ["tests/layout", "tests/golden/test_plans.py"]),
    "packs": (
        ["packer_service/packs/*.py"],
        [
            "tests/packs",
            "tests/ingest/test_render.py",
            "tests/ingest/test_oversize.py",
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
            *(f"packer_service/job/{name}.py" for name in ("resume", "ownership", "job_record", "finish")),
            *(f"packer_service/job/writing/{name}.py" for name in ("records", "record_file")),
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
    "reading": (["trainer/data/*.py"], ["tests/trainer/data"]),
    "attention": (["trainer/attention/**/*.py"], ["tests/trainer/attention"]),
}
"""Files, below ``preshard``, and tests of each room."""

LOOPS = ("plan", "layout")
"""Rooms with loops that Numba compiles."""

LIBRARIES = (
    "PIL.Image", "av", "click", "hypothesis.strategies", "mistral_common", "numba", "pandas", "pyarrow.compute",
    "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet", "pydantic", "pytest", "rich.console", "schemathesis",
    "tokenizers", "torch", "webdataset",
)  # fmt: skip
"""Imported once, before the forks in which mutants run. Nothing of ours is among them."""


def main() -> None:
    options = _options()
    mutants = [mutant for mutant in _drawn(options) if mutant.room in (options.room or ROOMS)]
    known = _logged(options.log, again=options.again)
    for library in LIBRARIES:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        outcomes = _run(mutants, known, options.scratch or Path(folder), options)
    _print_summary(outcomes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=300, help="mutants of all rooms together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", action="append", choices=ROOMS, help="only those drawn in this room; repeatable")
    parser.add_argument("--log", type=Path, help="appends a line of JSON for each mutant, and skips those it holds")
    parser.add_argument("--quick", action="store_true", help="leaves out what takes a new process for each mutant")
    parser.add_argument("--again", action="store_true", help="does not skip those that survived in the log")
    parser.add_argument("--drawn", type=Path, help="a file of mutants: written by the first run, and read by the next")
    parser.add_argument("--scratch", type=Path, help="a folder that keeps compiled loops, and what tests reach")
    return parser.parse_args()


def _drawn(options: argparse.Namespace) -> list[Mutant]:
    """The mutants of all rooms. A change of the code would draw others, so that their file holds them still."""
    if options.drawn and options.drawn.exists():
        return [Mutant(**json.loads(line)) for line in options.drawn.read_text("utf-8").splitlines()]
    mutants = drawn(CHECKOUT, {room: _files(of) for room, (of, _) in ROOMS.items()}, options.count, options.seed)
    if options.drawn:
        options.drawn.write_text("".join(json.dumps(asdict(mutant)) + "\n" for mutant in mutants), "utf-8")
    return mutants


def _logged(log: Path | None, *, again: bool) -> dict[str, str]:
    """Outcomes of an earlier run of the same tree, so that a run of hours can be stopped and continued."""
    if log is None or not log.exists():
        return {}
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    outcomes = {line["mutant"]: line["outcome"] for line in lines}
    return {mutant: outcome for mutant, outcome in outcomes.items() if not again or outcome != "survived"}


def _files(patterns: Sequence[str]) -> list[str]:
    found = {pattern: sorted(CHECKOUT.glob(f"preshard/{pattern}")) for pattern in patterns}
    if gone := [pattern for pattern, paths in found.items() if not paths]:
        sys.exit(f"ROOMS names files that are gone: {', '.join(gone)}")
    return [path.relative_to(CHECKOUT).as_posix() for paths in found.values() for path in paths]


def _run(
    mutants: list[Mutant], known: dict[str, str], folder: Path, options: argparse.Namespace
) -> list[tuple[Mutant, str]]:
    """Every mutant with its outcome: killed, survived or equivalent."""
    _equivalent()  # which may end the run, before it has started processes
    outcomes = [(mutant, known[str(mutant)]) for mutant in mutants if str(mutant) in known]
    left = [m for m in mutants if str(m) not in known and not (options.quick and _acts_at_import(m))]
    scratch = Scratch(CHECKOUT, folder)
    if gone := [test for _, tests in ROOMS.values() for test in tests if not (CHECKOUT / test).exists()]:
        sys.exit(f"ROOMS names tests that are gone: {', '.join(gone)}")
    for room, of_room in groupby(left, key=lambda mutant: mutant.room):
        judge = Judge(scratch, ROOMS[room][1], loops=room in LOOPS)
        outcomes += [(mutant, _judged(mutant, judge, options)) for mutant in of_room]
        judge.close()
    return outcomes


def _acts_at_import(mutant: Mutant) -> bool:
    before = (CHECKOUT / mutant.file).read_text("utf-8")
    return functions_changed(Planted(file=mutant.file, before=before, after=mutant.apply(CHECKOUT))) is None


def _judged(mutant: Mutant, judge: Judge, options: argparse.Namespace) -> str:
    before, after = (CHECKOUT / mutant.file).read_text("utf-8"), mutant.apply(CHECKOUT)
    old, new = _difference(before, after)
    began = time.monotonic()
    if (mutant.file, old, new) in _equivalent():
        outcome, killer = "equivalent", None
    else:
        killer = judge.killer(Planted(file=mutant.file, before=before, after=after), quickly=options.quick)
        outcome = "killed" if killer else "survived"
    print(f"{outcome} {time.monotonic() - began:.0f} s {mutant} {killer or ''}", file=sys.stderr, flush=True)
    if outcome == "survived":
        print(f"{mutant}\n- {old}\n+ {new}\n", flush=True)
    if options.log:
        line = {"mutant": str(mutant), "outcome": outcome, "by": killer, "before": old, "after": new}
        with options.log.open("a", encoding="utf-8") as file:
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
    """What became of the mutants of each room, and the name of each that survived, in this run or by the log."""
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

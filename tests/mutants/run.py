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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from draw import Mutant, drawn
from scratch import Scratch

CHECKOUT = Path(__file__).parents[2]

ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "schemas": (
        ["schemas/*.py"],
        ["tests/schemas/test_limits.py", "tests/verify/test_format_docs.py", "tests/schemas"],
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
            *("packer_service/ingest/render.py", "packer_service/ingest/stream.py", "packer_service/ingest/written.py"),
            *("packer_service/ingest/oversize.py", "packer_service/ingest/text/encoded.py"),
            "packer_service/ingest/text/marks.py",
        ],
        [
            *("tests/ingest/test_render.py", "tests/ingest/test_oversize.py", "tests/ingest/text"),
            "tests/ingest/families",
        ],
    ),
    "resume": (
        [
            f"packer_service/job/{name}.py"
            for name in ("records", "record_file", "resume", "ownership", "finished", "job_record")
        ],
        [
            "tests/job/test_ownership.py",
            "tests/job/test_workdir.py",
            "tests/job/test_pack.py",
            "tests/job/test_finish.py",
        ],
    ),
    "reading": (["trainer/data/*.py"], ["tests/trainer/data"]),
    "attention": (["trainer/attention/**/*.py"], ["tests/trainer/attention"]),
}
"""Files and tests of each room."""

LIBRARIES = (
    "PIL.Image", "av", "click", "hypothesis.strategies", "mistral_common", "numba", "pyarrow.compute", "pyarrow.fs",
    "pyarrow.parquet", "pydantic", "pytest", "rich.console", "schemathesis", "tokenizers", "torch", "webdataset",
)  # fmt: skip
"""Imported once, before the forks in which mutants run. Nothing of ours is among them."""


def main() -> None:
    options = _options()
    files = {room: _files(patterns) for room, (patterns, _) in ROOMS.items()}
    mutants = [m for m in drawn(CHECKOUT, files, options.count, options.seed) if m.room in (options.room or ROOMS)]
    if options.again:
        survived = {json.loads(line)["mutant"] for line in options.again.read_text().splitlines() if "survived" in line}
        mutants = [mutant for mutant in mutants if str(mutant) in survived]
    known = _logged(options.log)
    judged = [(mutant, known[str(mutant)]) for mutant in mutants if str(mutant) in known]
    mutants = [mutant for mutant in mutants if str(mutant) not in known]
    for library in LIBRARIES:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        outcomes = judged + _run(mutants, Path(folder), options.jobs, options.log)
    _print_summary(outcomes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=300, help="mutants of all rooms together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", action="append", choices=ROOMS, help="only those drawn in this room; repeatable")
    parser.add_argument("--jobs", type=int, default=1, help="mutants under test at once")
    parser.add_argument("--log", type=Path, help="appends a line of JSON for each mutant, and skips those it holds")
    parser.add_argument("--again", type=Path, help="only those that survived in this log")
    return parser.parse_args()


def _logged(log: Path | None) -> dict[str, str]:
    """Outcomes of an earlier run of the same tree, so that a run of hours can be stopped and continued."""
    if log is None or not log.exists():
        return {}
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    return {line["mutant"]: line["outcome"] for line in lines}


def _files(patterns: Sequence[str]) -> list[str]:
    found = (path for pattern in patterns for path in sorted(CHECKOUT.glob(pattern)))
    return [path.relative_to(CHECKOUT).as_posix() for path in found]


def _run(mutants: list[Mutant], folder: Path, jobs: int, log: Path | None) -> list[tuple[Mutant, str]]:
    """Every mutant with its outcome: killed, survived or equivalent."""
    scratches: SimpleQueue[Scratch] = SimpleQueue()
    for number in range(jobs):
        scratches.put(Scratch(CHECKOUT, folder / str(number)))
    known = _equivalent()

    def judge(mutant: Mutant) -> tuple[Mutant, str]:
        difference = _difference(mutant)
        if (mutant.file, *difference) in known:
            _note(log, mutant, "equivalent", difference)
            return mutant, "equivalent"
        scratch = scratches.get()
        began = time.monotonic()
        try:
            survives = scratch.survives(mutant, ROOMS[mutant.room][1])
        finally:
            scratches.put(scratch)
        outcome = "survived" if survives else "killed"
        print(f"{outcome} {time.monotonic() - began:.0f} s {mutant}", file=sys.stderr, flush=True)
        if survives:
            print(f"{mutant}\n- {difference[0]}\n+ {difference[1]}\n", flush=True)
        _note(log, mutant, outcome, difference)
        return mutant, outcome

    with ThreadPoolExecutor(jobs) as pool:
        try:
            return list(pool.map(judge, mutants))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _note(log: Path | None, mutant: Mutant, outcome: str, difference: tuple[str, str]) -> None:
    if log is not None:
        line = {"mutant": str(mutant), "outcome": outcome, "before": difference[0], "after": difference[1]}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _difference(mutant: Mutant) -> tuple[str, str]:
    """Lines before and after."""
    before = (CHECKOUT / mutant.file).read_text("utf-8").splitlines()
    changed = list(difflib.ndiff(before, mutant.apply(CHECKOUT).splitlines()))
    old, new = ([line[2:].strip() for line in changed if line.startswith(sign)] for sign in ("- ", "+ "))
    return " ".join(old), " ".join(new)


def _equivalent() -> set[tuple[str, str, str]]:
    listed = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text("utf-8")).get("mutant", [])
    return {(each["file"], each["before"], each["after"]) for each in listed}


def _print_summary(outcomes: list[tuple[Mutant, str]]) -> None:
    for room in ROOMS:
        counts = Counter(outcome for mutant, outcome in outcomes if mutant.room == room)
        if counts:
            print(f"{room}: " + ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items())))
    total = Counter(outcome for _, outcome in outcomes)
    judged = total["killed"] + total["survived"]
    print(f"{len(outcomes)} mutants: {total['killed']} killed, {total['survived']} survived, "
          f"{total['equivalent']} equivalent; {total['killed'] / max(judged, 1):.1%} of the others killed")  # fmt: skip


if __name__ == "__main__":
    main()

"""Files of every type that people have, drawn by a seed and packed, against what other people's software makes of them.

    nice python tests/hostile/files.py [--files 10000] [--seed 0] [--only tables ...] [--folder FOLDER]

Each generator of :mod:`generated` is a module with two functions:

* ``draw(seed, folder) -> Case``: writes a case's files below an empty folder, the same for the same seed. The case
  holds what other people's software makes of them, or all that is needed to ask it.
* ``judge(case) -> list[str]``: reads or packs the files by the code of the project, in this process, and returns what
  differs, one line each; none where all is right.

Prints how many files of each kind were drawn and what differed, with the seed that draws it again: ``--only NAME --seed
N --files 1 --folder FOLDER`` keeps its files. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

GENERATED = Path(__file__).parent / "generated"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files that were drawn.

    Attributes:
        kind: what is counted, such as the container and what is around it.
        files: the files that are read.
        facts: what its own generator needs to judge it.
    """

    kind: str
    files: tuple[Path, ...]
    facts: Any = None


def generators() -> list[str]:
    """Names of the generators that there are."""
    return sorted(path.stem for path in GENERATED.glob("*.py") if not path.stem.startswith("_"))


def differences(name: str, seed: int, folder: Path) -> tuple[Case | None, list[str]]:
    """Draws a case below a folder and judges it; what is raised differs, too."""
    generator = importlib.import_module(f"generated.{name}")
    case = None
    try:
        case = generator.draw(seed, folder)
        return case, generator.judge(case)
    except Exception as error:  # of any library: it is what is looked for
        line = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(line.filename).name}:{line.lineno}"
        return case, [f"raised {type(error).__name__} at {where}: {' '.join(str(error).split())[:300]}"]


def drawn(
    names: list[str], files: int, seed: int, folder: Path | None = None
) -> Iterator[tuple[str, int, Case | None, list[str]]]:
    """Cases of several generators until there are so many files, as many of each, in folders that are then removed."""
    found, next_seeds = dict.fromkeys(names, 0), dict.fromkeys(names, seed)
    while sum(found.values()) < files:
        name = min(names, key=lambda each: found[each])
        own = next_seeds[name]
        with ExitStack() as stack:
            place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="preshard-files-")))
            below = place / f"{name}-{own}"
            below.mkdir(parents=True)
            case, wrong = differences(name, own, below)
        found[name] += len(case.files) if case is not None else 1
        next_seeds[name] += 1
        yield name, own, case, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000, help="at least so many are drawn")
    parser.add_argument("--seed", type=int, default=0, help="that of the first case of each generator")
    parser.add_argument("--only", nargs="*", default=generators(), help=f"of {', '.join(generators())}")
    parser.add_argument("--until-one-differs", action="store_true", help="ends with the first case that differs")
    parser.add_argument("--folder", type=Path, help="keeps the files here")
    given = parser.parse_args()
    kinds, faults, began = Counter[str](), Counter[str](), (time.perf_counter(), os.times())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # what was drawn by then is counted
        for name, seed, case, wrong in drawn(given.only, given.files, given.seed, given.folder):
            kinds[f"{name}: {case.kind if case else 'not drawn'}"] += len(case.files) if case else 1
            for line in wrong:
                faults[name] += 1
                print(f"DIFFERS {name} --seed {seed}: {line}", flush=True)
            if wrong and given.until_one_differs:
                break
    for kind, number in sorted(kinds.items()):
        print(f"{number:>7}  {kind}")
    used = os.times()
    seconds = used.user + used.system - began[1].user - began[1].system
    total = sum(faults.values())
    drawn_files = f"{kinds.total():,} {'file' if kinds.total() == 1 else 'files'}"
    print(f"{drawn_files}, {total:,} {'difference' if total == 1 else 'differences'}, {seconds:.0f} s of a core")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()

"""Which tests meet a mutant, in what order, and before which of the two judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from quick import ENDED, FACTOR, LONGEST, LONGEST_INTERPRETED, UNSURE, WAITED, Planted, QuickJudge, functions_changed
from reach import EVERYWHERE, Reach
from scratch import Scratch

SLACK = 120
"""Seconds of processor time for importing and, without a warm cache, compiling."""

LIMIT = 900
"""The same for tests that start processes, whose time nobody takes before."""


class Judge:
    """Judges the mutants of one room."""

    def __init__(self, scratch: Scratch, tests: Sequence[str], *, loops: bool) -> None:
        """``loops``: the room's files hold loops that Numba compiles."""
        self._scratch, self._tests, self._loops = scratch, tests, loops
        self._quick = QuickJudge(
            scratch.tree,
            LONGEST_INTERPRETED if loops else LONGEST,
            tests,
            lambda chosen, server: scratch.run_pytest(
                ["-m", "not process", *chosen], [server], cache=scratch.warm, interpreted=loops
            ),
        )
        self._kills: Counter[str] = Counter()

    def close(self) -> None:
        self._quick.close()

    def killer(self, planted: Planted, *, quickly: bool) -> str | None:
        """The test that kills a mutant, and how it met it; None where it survives.

        A mutant in functions meets, in forks, the tests that run one of them and start no process. What is left, and a
        mutant that acts when its file is imported, meets in a new process those tests, or all, and at last the tests
        that start processes; loops are compiled there. ``quickly`` leaves out what needs a new process, where it can.
        """
        functions = functions_changed(planted)
        chosen = self._chosen(planted.file, functions)
        able = [test for test in chosen if self._reached[test].passed]
        with self._scratch.planted(planted.file, planted.after):
            found = self._quick.judge(planted, able) if functions is not None and able else None
            if found and not found.startswith((WAITED, ENDED)) and not (self._loops and found.endswith(UNSURE)):
                self._kills[found.partition(" ")[0]] += 1
                return f"quick {found}"
            if self._loops and functions is None and (found := self._fresh(planted.file, able, interpreted=True)):
                return f"fresh {found}"
            if quickly and functions is not None:
                return None
            if (self._loops or functions is None) and (found := self._fresh(planted.file, chosen, interpreted=False)):
                return f"fresh {found}"
            if not quickly and (found := self._scratch.killer(planted.file, self._tests, LIMIT, mark="process")):
                return f"process {found}"
        return None

    @property
    def _reached(self) -> dict[str, Reach]:
        return self._quick.reached

    def _fresh(self, file: str, tests: Sequence[str], *, interpreted: bool) -> str | None:
        """The first tests alone before all: most mutants die there, and fewer files of tests are imported."""
        for part in ([*tests[:10]], [*tests[10:]]):
            limit = FACTOR * sum(self._reached[test].seconds for test in part) + SLACK
            if part and (found := self._scratch.killer(file, part, limit, interpreted=interpreted)):
                return found
        return None

    def _chosen(self, file: str, functions: Sequence[str] | None) -> list[str]:
        """Tests that meet a mutant: the quick ones first, and before them those that have killed others."""

        def reaches(test: str) -> bool:
            reached = self._reached[test].functions
            return EVERYWHERE in reached or not reached.isdisjoint(functions or ())

        def touches(test: str) -> bool:
            return any(name.startswith(f"{file}::") for name in self._reached[test].functions)

        def cost(test: str) -> tuple[bool, float]:
            own = Path(test.partition("::")[0]).stem.startswith(f"test_{Path(file).stem}")
            return functions is None and not touches(test), self._reached[test].seconds / (1 + own + self._kills[test])

        return sorted((test for test in self._reached if functions is None or reaches(test)), key=cost)

"""The smallest case of `make mutants`."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import load_script

RUN = load_script(Path(__file__).with_name("run.py"))


def test_the_lists_name_what_is_there() -> None:
    """Fails when files, tests or lines move and the lists of rooms and of equivalent mutants stay behind."""
    assert all(RUN._rooms().values())
    assert RUN._equivalent()


@pytest.mark.process
def test_tests_with_interpreted_loops_pass_in_a_copy_of_the_tree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fails when every run ends at once, with "tests of plan fail without a mutant"."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # its pytest is no worker of this one's
    RUN._copy_tree(tmp_path / "tree")
    judge = RUN.Judge(tmp_path, "plan", quick=True, tests=["tests/plan/test_best_fit.py"], chosen=())
    assert " passed" in judge._said()

"""The few cases of the grid stand for all of them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from scripts import load_script


def test_any_two_choices_meet() -> None:
    """Fails when a model, split, way, kind or layout never meets another that it can meet, or cases are not few."""
    grid = load_script(Path(__file__).with_name("grid.py"))
    choices = product(("qwen3", "molmo2"), grid.SPLITS, grid.WAYS, grid.KINDS, grid.LAYOUTS)
    named = ("family", "split", "way", "kind", "layout")
    every = [case for case in (grid.Case(**dict(zip(named, each, strict=True))) for each in choices) if case.possible]
    chosen = grid.covering(every)
    assert set().union(*(case.pairs for case in chosen)) == set().union(*(case.pairs for case in every))
    assert len(chosen) < 100 < len(every) / 10
    together = {(case.split, case.way) for case in every}
    assert {split for split, _ in together} == set(grid.SPLITS)
    assert {way for _, way in together} == set(grid.WAYS)
    assert ("2x4", "dp_shard 2") not in together, "sixteen processes"

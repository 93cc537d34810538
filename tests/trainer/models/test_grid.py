"""The few cases of the grid stand for all of them."""

from __future__ import annotations

import importlib.util
import sys
from itertools import product
from pathlib import Path
from typing import Any


def _grid() -> Any:
    """The script ``grid.py``; another folder has one of the same name."""
    spec = importlib.util.spec_from_file_location("grid_of_models", Path(__file__).with_name("grid.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def test_any_two_choices_meet() -> None:
    """Fails when a model, split, way, kind or layout never meets another that it can meet, or cases are not few."""
    grid = _grid()
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

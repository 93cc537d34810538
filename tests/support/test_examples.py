"""The examples that property tests draw are the same wherever and whenever they run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers


def drawn() -> list[int]:
    """The examples of one property."""
    values: list[int] = []

    @settings(max_examples=100)
    @given(integers())
    def note(value: int) -> None:
        values.append(value)

    note()
    return values


def test_what_else_was_imported_changes_no_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when examples depend on the modules that other tests of the process have imported."""
    before = drawn()
    assert len(set(before)) > 50
    (tmp_path / "ours.py").write_text("".join(f"NUMBER_{n} = {n * 1_000_003}\n" for n in range(1, 1_000)))
    spec = importlib.util.spec_from_file_location("ours", tmp_path / "ours.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ours", module)
    spec.loader.exec_module(module)
    assert drawn() == before

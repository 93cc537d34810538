"""The page about GPUs has the figures that were measured."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_figures_of_layouts() -> None:
    """Fails when docs/gpu.md is edited, or its figures replaced, and the other is not."""
    page = (ROOT / "docs" / "gpu.md").read_text()
    [folder] = (ROOT / "docs" / "gpu").iterdir()
    tables = runpy.run_path(str(Path(__file__).with_name("tables.py")))
    rows = [line for line in tables["layouts"](folder).splitlines() if line[2:3].isdigit()]
    assert len(rows) == 13
    assert [row for row in rows if row not in page] == []

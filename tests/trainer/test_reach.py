"""Size of what a reader has to open in order to understand a module (``tests/support/reach.py``)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from reach import ROOT, count_lines, measure
from syntax import parse

from preshard.trainer.extras import EXTRAS

LIMITS = {"preshard.train": (60, 6_000), "preshard.data": (36, 3_000), "preshard.attention": (24, 1_500)}
"""Files and lines of code."""

RECIPE = 200
"""Lines of ``trainer/train.py``, all of them."""


@pytest.mark.parametrize("module", LIMITS)
def test_a_module_reaches_no_further(module: str) -> None:
    """Fails when the trainer, the reader or the attention comes to import what it did without, also in a function."""
    found = measure(module)
    files, lines = LIMITS[module]
    assert "preshard.schemas.sequence" in found.lines
    assert not any(name.startswith("preshard.trainer.extra.") for name in found.lines)
    assert (len(found.lines) <= files, sum(found.lines.values()) <= lines) == (True, True), (
        f"{module} reaches {len(found.lines)} files and {sum(found.lines.values())} lines by {' -> '.join(found.chain)}"
    )


def test_the_recipe_is_one_page() -> None:
    """Fails when the recipe grows, instead of what it calls."""
    assert len((ROOT / "trainer" / "train.py").read_text(encoding="utf-8").splitlines()) <= RECIPE


def test_extras_are_listed_and_asked_for_by_name() -> None:
    """Fails when an extra is on no list, or is asked for under a name that is on none."""
    folder = ROOT / "trainer" / "extra"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {name.partition(".")[0] for name in EXTRAS} == modules | {"dry_run"}
    asked = set()
    for path in (ROOT / "trainer").glob("**/*.py"):
        for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load_extra":
                assert isinstance(node.args[0], ast.Constant)
                asked.add(node.args[0].value)
    assert asked == EXTRAS.keys()


def test_lines_are_of_code_alone(tmp_path: Path) -> None:
    """Fails when blanks, comments or docstrings count, or a statement over several lines counts once."""
    file = tmp_path / "module.py"
    file.write_text(
        '"""Of a\nmodule."""\n\n# why\nX = (\n    1,\n)\n\n\ndef f() -> str:\n    """Says."""\n    return """a\nb"""\n'
    )
    assert count_lines(file) == 3 + 1 + 2

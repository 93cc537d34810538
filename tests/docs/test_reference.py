"""docs/reference/index.md and the public modules are the same list."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import preshard

ROOT = Path(__file__).parents[2]
PRIVATE = {"__init__", "__main__", "extras", "waiting"}
"""Files of ``preshard`` that are no public module."""

ROW = r"^\| `preshard\.(\w+)` \| ([^:;|]+)"


NEEDS_OTHERS = {"energon", "torchtitan"}
"""Modules for a package that the tests have only in tests/matrix."""


def exported(module: str) -> set[str]:
    """The names in a public module's ``__all__``."""
    source = (ROOT / "preshard" / f"{module}.py").read_text(encoding="utf-8")
    names = re.search(r"^__all__ = \[(.*?)\]", source, re.MULTILINE | re.DOTALL)
    return set(re.findall(r'"(\w+)"', names[1])) if names else {"main"}


def test_the_page_lists_every_public_name() -> None:
    """Fails when a public module or one of its names is added, renamed or removed and the page is not changed."""
    page = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    listed = {module: set(re.findall(r"`(\w+)`", names)) for module, names in re.findall(ROW, page, re.MULTILINE)}
    top = re.search(r"^\| `preshard` \| ([^:;|]+)", page, re.MULTILINE)
    assert top is not None
    assert {*re.findall(r"`(\w+)`", top[1])} == {*preshard.__all__}
    assert {*dir(preshard)} == {*preshard.__all__, *listed}
    stub = Path(preshard.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert [
        name for name in preshard.__all__ if not re.search(rf"^{name}[: ]|import {name} as {name}$", stub, re.M)
    ] == []
    listed.pop("schemas")  # a package, whose modules have pages of their own
    modules = {path.stem for path in (ROOT / "preshard").glob("*.py")} - PRIVATE
    assert listed.keys() == modules
    assert listed == {name: exported(name) for name in modules}
    for name in sorted(modules - NEEDS_OTHERS):
        module = importlib.import_module(f"preshard.{name}")
        assert [each for each in listed[name] if not hasattr(module, each)] == []


def test_programs_of_the_pages_import_public_modules() -> None:
    """Fails when a page shows a program that imports what may move from one version to the next."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    programs = [
        program
        for page in pages
        for program in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    ]
    imported = {
        name
        for program in programs
        for name in re.findall(r"^ *(?:from|import) (preshard[\w.]*)", program, re.MULTILINE)
    }
    assert "preshard.data" in imported
    assert [name for name in imported if name.startswith(("preshard.packer_service", "preshard.trainer"))] == []

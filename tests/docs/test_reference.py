"""docs/reference/index.md and the public modules are the same list."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import preshard

ROOT = Path(__file__).parents[2]
PRIVATE = {"__init__", "__main__", "checkout", "extras"}
"""Files of ``preshard`` that are no public module."""

ROW = r"^\| `preshard\.(\w+)` \| ([^:;|]+)"


def test_the_page_lists_every_public_name() -> None:
    """Fails when a public module or one of its names is added, renamed or removed and the page is not changed."""
    page = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    listed = {module: set(re.findall(r"`(\w+)`", names)) for module, names in re.findall(ROW, page, re.MULTILINE)}
    top = re.search(r"^\| `preshard` \| ([^:;|]+)", page, re.MULTILINE)
    assert top is not None
    assert {*re.findall(r"`(\w+)`", top[1])} == {*preshard.__all__}
    listed.pop("schemas")  # a package, whose modules have pages of their own
    modules = {path.stem for path in (ROOT / "preshard").glob("*.py")} - PRIVATE
    assert listed.keys() == modules
    public = {name: importlib.import_module(f"preshard.{name}") for name in sorted(modules)}
    assert listed == {name: set(getattr(module, "__all__", ["main"])) for name, module in public.items()}
    assert all(hasattr(module, name) for module in public.values() for name in listed[module.__name__.split(".")[1]])


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

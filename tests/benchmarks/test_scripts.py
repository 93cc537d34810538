"""The scripts behind the figures can be started."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("test_"))
NEEDS = {"peers": "trl.data_utils", "compiled_kernels": "triton"}
"""Imports of scripts from packages that may not run where the tests do."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_what_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a script imports a module or name of ours that was moved."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], exc_type=ImportError)
    monkeypatch.syspath_prepend(str(FOLDER))
    specification = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, specification.name, module)
    specification.loader.exec_module(module)


def test_every_script_of_the_pages_exists() -> None:
    """Fails when a figure names a script that was renamed."""
    docs = FOLDER.parents[1] / "docs"
    named = set(re.findall(r"`(\w+)\.py`", (docs / "benchmarks.md").read_text(encoding="utf-8")))
    pages = " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in docs.glob("*.md"))
    named |= set(re.findall(r"tests/benchmarks/(\w+)\.py", pages))
    assert len(named) > 20
    assert named <= set(SCRIPTS)

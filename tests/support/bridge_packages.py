"""Megatron Bridge on a CPU, for tests that compare with its own functions."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest


def without_packages(monkeypatch: pytest.MonkeyPatch, *names: str) -> Path:
    """Bridge's folder. The packages of these names below it become empty ones, whose modules can be imported: the real
    ones import Transformer Engine, which needs a GPU. Skips the test where Bridge is not installed.
    """
    found = find_spec("megatron")
    roots = [Path(path, "bridge") for path in found.submodule_search_locations or ()] if found is not None else []
    root = next((path for path in roots if path.is_dir()), None)
    if root is None:
        pytest.skip("needs megatron-bridge, which wants transformers below 5")
    for name in names:
        package = ModuleType(f"megatron.bridge{name}")
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        monkeypatch.setitem(sys.modules, package.__name__, package)
    return root

"""The overlays, rendered once."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from manifests import overlay


@pytest.fixture(scope="session")
def rendered() -> Callable[[str], list[dict[str, Any]]]:
    """``rendered("local/pack")``: the objects of an overlay, to be changed at will."""
    once = cache(overlay)
    return lambda name: copy.deepcopy(once(name))

"""The overlays, rendered once, and whether programs can be confined as in a pod."""

from __future__ import annotations

import copy
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from confined import confined
from manifests import K8S, overlay


@pytest.fixture(scope="session")
def rendered() -> Callable[[str], list[dict[str, Any]]]:
    """``rendered("local/pack")``: the objects of an overlay, to be changed at will."""
    once = cache(overlay)
    return lambda name: copy.deepcopy(once(name))


@pytest.fixture(scope="session")
def can_confine() -> None:
    """Skips unless root runs the tests: only root may confine as a container's runtime does, and the pod's user has to
    be able to read the code.
    """
    if os.getuid() != 0 or not all(shutil.which(tool) for tool in ("unshare", "setpriv", "mount")):
        pytest.skip("no right to make namespaces here")
    reading = f"open({str(K8S / 'images' / 'launch.py')!r})"
    tried = confined(["sh", "-c", '"$0" -c "$1"', sys.executable, reading])
    if tried.wait(240) != 0:
        pytest.skip("no right to make namespaces here, or the code is closed to other users")

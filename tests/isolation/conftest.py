"""Broken decoders that a helper process can import, and helpers with small limits."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from packer_service.isolation.isolated import Isolated
from packer_service.isolation.limits import Limits


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Functions that break the process which calls them; helpers started from now on find them too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "decoders"))
    return importlib.import_module("broken_decoders")


@pytest.fixture
def broken_media(broken: ModuleType) -> ModuleType:
    """The packer's decoders, breaking on some media; their helpers import them, which takes a second of each."""
    return importlib.import_module("broken_media")


@pytest.fixture
def isolated(broken: ModuleType) -> Iterator[Isolated]:
    """Calls in a helper process with limits that a test can wait for."""
    # processor time only for what never ends: a slow machine takes a while to fill the memory
    helper = Isolated(Limits(memory=256 << 20, cpu_seconds=60, asleep_seconds=2))
    yield helper
    helper.close()

"""Broken decoders that a helper process can import, and helpers with small limits."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from preshard.packer_service.runtime.workers import Isolated, Limits


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Functions that break the process which calls them; helpers started from now on find them too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "decoders"))
    return importlib.import_module("broken_decoders")


@pytest.fixture
def broken_media(broken: ModuleType) -> ModuleType:
    """The packer's decoders, breaking on some media; their helpers import them, which takes a second of each."""
    return importlib.import_module("broken_media")


@pytest.fixture(scope="module")
def kept() -> Iterator[Isolated]:
    """Limits that a test can wait for. A test leaves a whole helper or none, and the next one begins with that."""
    # processor time only for what never ends: a slow machine takes a while to fill the memory
    helper = Isolated(Limits(memory=256 << 20, cpu_seconds=60, asleep_seconds=2))
    yield helper
    helper.close()


@pytest.fixture
def isolated(broken: ModuleType, kept: Isolated) -> Isolated:
    """Calls in a helper process: one that starts now finds the broken decoders."""
    return kept

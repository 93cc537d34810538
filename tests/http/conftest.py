"""A service over copies of the packed tiny dataset; a test that changes its copy never affects another."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from preshard.packer_service.http import listing
from preshard.packer_service.http.app import create_app
from preshard.packer_service.http.settings import ServiceSettings

Start = Callable[..., TestClient]
PATIENT: dict[str, Any] = {"request_seconds": 240.0, "plan_seconds": 240.0}
"""Limits that a busy machine does not reach; tests of limits set their own."""


@pytest.fixture(autouse=True, scope="session")
def patience() -> Iterator[None]:
    """Requests wait for looks through the root for as long as those take on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FIRST_WAIT_SECONDS", "LATER_WAIT_SECONDS"):
            patch.setattr(listing, name, 120.0)
        yield


@pytest.fixture(scope="session")
def served_root(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Path) -> Path:
    """A root with one dataset, ``tiny``. Read only."""
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(tiny_dataset, root / "tiny")
    return root


@pytest.fixture(scope="session")
def client(served_root: Path) -> Iterator[TestClient]:
    """A service over ``served_root``, for questions that change nothing."""
    app = create_app(ServiceSettings(root=str(served_root), **PATIENT))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services over other roots, with other settings: ``start(root, token=...)``. They scan at every request."""
    with ExitStack() as stack:

        def begin(root: Path, **settings: Any) -> TestClient:
            app = create_app(ServiceSettings(root=str(root), **{"rescan_seconds": 0, **PATIENT, **settings}))
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield begin


@pytest.fixture
def root(tmp_path: Path, tiny_dataset: Path) -> Path:
    """A root of the test's own with the datasets ``one`` and ``two``."""
    for name in ("one", "two"):
        shutil.copytree(tiny_dataset, tmp_path / "root" / name)
    return tmp_path / "root"

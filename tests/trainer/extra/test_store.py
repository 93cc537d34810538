"""Time that a store is given."""

from __future__ import annotations

import math
import threading

import pytest
from pyarrow import fs

from preshard.schemas.errors import ReaderError
from preshard.trainer.extra.store import Store, open_store


@pytest.mark.parametrize("timeout", [math.inf, 1e12])
def test_a_store_may_be_waited_for_without_end(timeout: float) -> None:
    """Fails when a time beyond what the system can count ends a reader in an OverflowError."""
    remote = fs.SubTreeFileSystem("/", fs.LocalFileSystem())
    store = Store(None, remote, "root", timeout=timeout)
    assert store.is_remote
    assert store.persist("manifest.json", lambda: threading.Event().wait(0.05) or "read") == "read"


def test_no_number_is_no_time() -> None:
    """Fails when NaN passes for seconds, after which nothing is ever given up."""
    with pytest.raises(ReaderError, match="store_timeout is nan; give seconds above 0"):
        open_store(None, fs.LocalFileSystem(), "root", store_timeout=math.nan)

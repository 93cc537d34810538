"""Kernels compile whether or not the machine keeps a cache."""

from __future__ import annotations

import numba.core.caching
import pytest

from preshard.packer_service.numerics import compiled


def doubled(value: int) -> int:
    return 2 * value


@pytest.mark.parametrize("writable", [True, False])
def test_compiles_whether_or_not_a_cache_can_be_written(monkeypatch: pytest.MonkeyPatch, writable: bool) -> None:
    """Fails when importing the planner raises on a read-only image without a home."""
    if not writable:
        monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
        with pytest.raises(RuntimeError, match="cannot cache"):
            numba.njit(cache=True)(doubled)
    assert compiled(doubled)(21) == 42

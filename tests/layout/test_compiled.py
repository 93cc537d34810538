"""Kernels without a cache, and the generator that the searches draw from."""

from __future__ import annotations

import numba
import numpy as np

from packer_service.layout.compiled import compiled, next_random


def test_a_kernel_works_where_no_cache_can_be_written(monkeypatch):
    # Fails when a read-only installation cannot import the package: numba refuses at decoration.
    real, refused = numba.njit, []

    def without_cache(*args, cache=False, **options):
        if cache:
            refused.append(True)
            raise RuntimeError("cannot cache function: no locator available")
        return real(*args, **options)

    monkeypatch.setattr(numba, "njit", without_cache)
    assert compiled(lambda value: value + 1)(1) == 2
    assert refused == [True]


def test_the_generator_is_xorshift_in_64_bits():
    # Fails when a shift is done on signed numbers or in Python's unbounded ones, so that machines draw differently.
    state, expected = np.uint64(1), 1
    for _ in range(100):
        state = np.uint64(next_random(state))
        expected ^= expected << 13 & (1 << 64) - 1
        expected ^= expected >> 7
        expected ^= expected << 17 & (1 << 64) - 1
        assert int(state) == expected != 0

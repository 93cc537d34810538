"""The generator that the searches draw from."""

from __future__ import annotations

import numpy as np

from packer_service.layout.xorshift import next_random


def test_the_generator_is_xorshift_in_64_bits():
    # Fails when a shift is done on signed numbers or in Python's unbounded ones, so that machines draw differently.
    state, expected = np.uint64(1), 1
    for _ in range(100):
        state = np.uint64(next_random(state))
        expected ^= expected << 13 & (1 << 64) - 1
        expected ^= expected >> 7
        expected ^= expected << 17 & (1 << 64) - 1
        assert int(state) == expected != 0

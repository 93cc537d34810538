"""The generator that the searches draw from."""

from __future__ import annotations

import numpy as np

from preshard.packer_service.layout.deals import next_random, remainder


def test_the_generator_is_xorshift_in_64_bits():
    # Fails when a shift is done on signed numbers or in Python's unbounded ones, so that machines draw differently.
    state, expected = np.uint64(1), 1
    for _ in range(100):
        state = np.uint64(next_random(state))
        expected ^= expected << 13 & (1 << 64) - 1
        expected ^= expected >> 7
        expected ^= expected << 17 & (1 << 64) - 1
        assert int(state) == expected != 0


def test_a_remainder_is_exact():
    # Fails when the quotient of floating-point numbers is taken as it is: searches would draw other blocks.
    state = np.uint64(1)
    for count in (1, 2, 3, 7, 64, 287, 288, 576, 8192, 2**20 - 1, 2**31 - 1):
        edges = [
            0,
            1,
            count - 1,
            count,
            count + 1,
            2**56 - 1,
            (2**56 - 1) // count * count,
            (2**56 - 1) // count * count - 1,
        ]
        for _ in range(50):
            state = np.uint64(next_random(state))
            edges += [int(state) >> 8, (int(state) >> 8) // count * count]
        for value in edges:
            if value >= 0:
                assert remainder(np.int64(value), count) == value % count

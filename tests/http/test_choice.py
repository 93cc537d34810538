"""The order of packs and shards by their values."""

from __future__ import annotations

import numpy as np
import pytest

from preshard.packer_service.http.answers.choice import ranked


@pytest.mark.parametrize("values", [5, 1, 40], ids=["many ties", "all equal", "few ties"])
@pytest.mark.parametrize("descending", [False, True])
def test_any_part_of_the_order_is_the_sorted_lists(values: int, descending: bool) -> None:
    """Fails when equal values change places, one without a value is not last, or a part begins elsewhere."""
    drawn = np.random.default_rng(values)
    for n in (0, 1, 2, 57):
        numbers = drawn.integers(0, values, n) / 7
        numbers[drawn.random(n) < 0.2] = np.nan
        sign = -1 if descending else 1
        wanted = sorted(range(n), key=lambda at: (np.isnan(numbers[at]), sign * np.nan_to_num(numbers[at]), at))
        for start in (0, 1, 20, 55, 80):
            for stop in (start, start + 1, start + 10, start + 100):
                assert ranked(numbers, slice(start, stop), descending=descending).tolist() == wanted[start:stop]

"""The two terms of a layout's cost, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from preshard.packer_service.layout.measures import gather_cost, key_weight, ring_cost
from preshard.schemas.config import CostConfig


def test_a_key_weighs_what_moving_it_takes_in_tiles() -> None:
    """Fails when keys move without values, KV heads stand in for query heads, or a unit is off by a thousand."""
    model = CostConfig(
        num_attention_heads=6, num_key_value_heads=2, head_dim=64, attention_tflops=100.0, link_gb_per_s=25.0
    )
    move = 2 * 64 * (1 + 1) * 2 / 25e9  # two heads of keys and values in 16 bits
    tile = 2 * 2 * 128 * 128 * 6 * 64 / 100e12  # scores and weighted values, two operations each
    assert key_weight(model) == pytest.approx(move / tile, rel=1e-12)
    assert round(key_weight(CostConfig()), 3) == 0.122, "as docs/layouts.md says"


def test_a_ring_moves_all_slices_but_its_own_and_a_gather_what_it_needs() -> None:
    """Fails when a ring of one moves a slice, or a path is weighed like a key."""
    assert ring_cost(100, 50, 1, 0.5) == 100
    assert ring_cost(100, 50, 4, 0.5) == 175
    assert gather_cost(100, 30, 0.5) == 115
    np.testing.assert_array_equal(ring_cost(np.array([1, 2]), 10, 3, 2.0), [41, 42])
    np.testing.assert_array_equal(gather_cost(np.array([1, 2]), np.array([3, 4]), 2.0), [7, 10])

"""Measures on a layout worked out by hand, and on what is not a layout."""

from __future__ import annotations

import numpy as np
import pytest

from preshard.packer_service.layout.measures import gather_cost, key_weight, measure_layout, ring_cost, ring_step_maxima
from preshard.schemas.errors import LayoutError
from preshard.schemas.layout import TILE, TokenLayout
from preshard.schemas.sections import CostConfig
from preshard.schemas.sequence import MaskArrays


def layout(scheme: str, rows: list[list[int]], degree: int) -> TokenLayout:
    needs, runs = np.zeros((degree, 1), bool), np.array(rows, np.int32).reshape(-1, 3)
    return TokenLayout(scheme=scheme, ring_degree=degree, block_size=TILE, runs=runs, needs=needs)


def causal(seq_len: int) -> MaskArrays:
    zero = np.zeros(seq_len, np.int32)
    return MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1)


def test_written_out():
    # Fails when steps run the other way round the ring, or traffic counts keys that a rank holds. Four blocks of two
    # tokens, causal: ten tiles. Rank 0 has the first half, 3 tiles; rank 1 has 4 with rank 0's keys and 3 with its own.
    found = measure_layout(causal(8), layout("contiguous", [[0, 0, 4], [1, 4, 4]], 2), tile=2)
    assert (found.whole_tiles, found.tile_floor) == (10, 5.0)
    assert found.tiles.tolist() == [[3, 0], [4, 3]]
    assert (found.gather_path, found.ring_path, found.ring_steps.tolist()) == (7, 7, [3, 4])
    assert (found.keys_fetched.tolist(), found.kv_traffic) == ([0, 4], 0.5)
    assert found.area.tolist() == [10, 26]
    zigzag = measure_layout(causal(8), layout("zigzag", [[0, 0, 2], [0, 6, 2], [1, 2, 4]], 2), tile=2)
    assert (zigzag.gather_path, zigzag.ring_path, zigzag.keys_fetched.tolist()) == (5, 5, [4, 2])


def test_ring_step_is_the_distance_to_the_owner_of_the_keys():
    # Fails when rank r is taken to have the keys of rank r + t in step t.
    tiles = np.array([[1, 2, 3], [40, 5, 6], [7, 80, 9]])
    assert ring_step_maxima(tiles).tolist() == [9, 80, 7]


def test_one_rank_moves_nothing():
    # Fails on a division by zero ranks to fetch from.
    assert measure_layout(causal(8), layout("contiguous", [[0, 0, 8]], 1)).kv_traffic == 0.0


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[0, 0, 4], [1, 4, 3]], "token 7 of 8"),
        ([[0, 0, 4], [1, 3, 5]], "token 4 of 8"),
        ([[0, 0, 3], [1, 3, 5]], "rank 0 holds 3 tokens; each must hold 4"),
        ([[1, 0, 4], [0, 4, 4]], "rank after rank"),
        ([[0, 0, 4], [2, 4, 4]], "rank after rank"),
        ([], "token 0 of 8"),
    ],
)
def test_what_is_not_a_partition_is_refused(rows, said):
    # Fails when a layout that loses or repeats a token is measured as if it were one.
    with pytest.raises(LayoutError, match=said):
        measure_layout(causal(8), layout("contiguous", rows, 2), tile=2)


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

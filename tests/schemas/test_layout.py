"""Slices, pieces, partitions and boundaries, written out."""

from __future__ import annotations

import numpy as np
import pytest

from preshard.schemas.errors import LayoutError
from preshard.schemas.layout import (
    TokenLayout,
    boundaries_from_edges,
    check_partition,
    layout_name,
    rank_positions,
    slice_positions,
)

RUNS = np.array([[0, 0, 2], [0, 9, 3], [0, 4, 1], [1, 2, 2], [1, 5, 4]], np.int32)


def layout(runs: object, degree: int = 2) -> TokenLayout:
    runs = np.array(runs, np.int32).reshape(-1, 3)
    return TokenLayout(scheme="zigzag", ring_degree=degree, block_size=4, runs=runs, needs=np.ones((degree, 3), bool))


def test_a_slice_is_its_rows_one_after_the_other() -> None:
    """Fails when a row's start or length is taken from another column, or rows come in natural order."""
    assert slice_positions(RUNS, 0).tolist() == [0, 1, 9, 10, 11, 4]
    assert slice_positions(RUNS, 1).tolist() == [2, 3, 5, 6, 7, 8]
    assert slice_positions(RUNS, 2).tolist() == []
    assert slice_positions(RUNS, 1).dtype == np.int64


def test_ulysses_takes_equal_pieces_of_a_slice() -> None:
    """Fails when pieces overlap or leave a gap, or a slice that does not divide is cut unevenly."""
    pieces = [
        rank_positions(RUNS, ring_rank=0, ulysses_degree=3, ulysses_rank=rank).tolist() for rank in range(3)
    ]  # fmt: skip
    assert pieces == [[0, 1], [9, 10], [11, 4]]
    assert rank_positions(RUNS, ring_rank=1).tolist() == slice_positions(RUNS, 1).tolist()
    with pytest.raises(ValueError, match=r"6 tokens.*4"):
        rank_positions(RUNS, ring_rank=0, ulysses_degree=4)


def test_a_partition_passes_and_is_named_by_scheme_and_degree() -> None:
    check_partition(layout(RUNS), 12)
    assert layout(RUNS).name == layout_name("zigzag", 2) == "zigzag.ring2"


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([[0, 0, 6], [1, 6, 5]], "token 11 of 12"),
        ([[0, 0, 6], [1, 5, 7]], "token 6 of 12"),
        ([[0, 1, 5], [1, 6, 6]], "token 0 of 12"),
        ([[0, 0, 6], [1, 6, 6], [1, 12, 0]], "token 12 of 12"),
        ([[0, 0, 5], [1, 5, 7]], "rank 0 holds 5 tokens; each must hold 6"),
        ([[0, 0, 6], [0, 6, 6]], "rank 0 holds 12 tokens; each must hold 6"),
        ([[1, 0, 6], [0, 6, 6]], "rank after rank, 0 to 1"),
        ([[0, 0, 6], [2, 6, 6]], "rank after rank"),
        ([[-1, 0, 6], [1, 6, 6]], "rank after rank"),
        ([], "token 0 of 12"),
    ],
)
def test_what_is_not_a_partition_is_named(runs: object, said: str) -> None:
    """Fails when a token that two ranks hold, or none, passes, or a rank that does not exist."""
    with pytest.raises(LayoutError, match=said):
        check_partition(layout(runs), 12)


def test_boundaries_count_crops_and_pooled_rows() -> None:
    """Fails when a rank's end is not the next one's start, or the largest rank is that of crops and not of rows."""
    crops, pooled = np.array([2, 3, 7]), np.array([8, 30, 44])
    assert boundaries_from_edges(np.array([0, 1, 1, 3]), crops, pooled) == {
        "0": {"start_image_idx": 0, "end_image_idx": 2, "start_pool_idx": 0, "end_pool_idx": 8, "max_num_tokens": 36},
        "1": {"start_image_idx": 2, "end_image_idx": 2, "start_pool_idx": 8, "end_pool_idx": 8, "max_num_tokens": 36},
        "2": {"start_image_idx": 2, "end_image_idx": 7, "start_pool_idx": 8, "end_pool_idx": 44, "max_num_tokens": 36},
    }

"""Slices, pieces, partitions and boundaries, written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preshard.schemas.errors import LayoutError
from preshard.schemas.layout import (
    TokenLayout,
    boundaries_from_edges,
    check_partition,
    layout_name,
    rank_positions,
    segment_edges,
    slice_positions,
)
from preshard.schemas.schemes import contiguous_runs, merge_adjacent, zigzag_runs

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


def test_written_out():
    # Fails when chunks are dealt forwards only, or adjacent ranges of a rank stay apart.
    runs = zigzag_runs(np.array([0, 8, 12]), 2)
    assert runs.tolist() == [[0, 0, 2], [0, 6, 3], [0, 11, 1], [1, 2, 4], [1, 9, 2]]
    assert zigzag_runs(np.array([0, 8, 12]), 1).tolist() == [[0, 0, 12]]
    assert contiguous_runs(12, 3).tolist() == [[0, 0, 4], [1, 4, 4], [2, 8, 4]]


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20), degree=st.sampled_from([1, 2, 3, 4, 8]))
def test_each_rank_holds_its_two_chunks_of_each_segment(lengths, degree):
    # Fails when segments of different lengths share one chunk length.
    edges = np.concatenate([[0], np.cumsum(lengths)]) * 2 * degree
    runs = zigzag_runs(edges, degree)
    for rank in range(degree):
        expected = []
        for start, length in zip(edges[:-1], lengths, strict=True):
            for chunk in (rank, 2 * degree - 1 - rank):
                expected += range(start + chunk * length, start + (chunk + 1) * length)
        assert slice_positions(runs, rank).tolist() == expected
    ends = runs[:, 1] + runs[:, 2]
    assert not ((runs[1:, 0] == runs[:-1, 0]) & (ends[:-1] == runs[1:, 1])).any()


def test_segments_are_documents_and_gaps():
    # Fails when a gap between documents or the tail is joined to a document.
    assert segment_edges(np.array([16, 0]), np.array([8, 8]), 40).tolist() == [0, 8, 16, 24, 40]
    assert segment_edges(np.array([], int), np.array([], int), 16).tolist() == [0, 16]


@pytest.mark.parametrize("starts", [[0, 4], [0, 36]])
def test_overlap_and_overrun_are_refused(starts):
    # Fails when an overlap is hidden by sorting the edges.
    with pytest.raises(LayoutError, match="reaches past"):
        segment_edges(np.array(starts), np.array([8, 8]), 40)


def test_lengths_that_do_not_divide():
    # Fails when a remainder is dropped or dealt unevenly.
    with pytest.raises(LayoutError, match=r"segment at token 8 has 4 tokens.*align"):
        zigzag_runs(np.array([0, 8, 12]), 4)
    with pytest.raises(LayoutError, match="multiple of 5"):
        contiguous_runs(12, 5)


def test_empty_rows_are_dropped():
    # Fails when a row without a token stays, or keeps its neighbours apart.
    rows = np.array([[0, 0, 4], [0, 9, 0], [0, 4, 4], [1, 8, 0], [1, 8, 4]])
    assert merge_adjacent(rows).tolist() == [[0, 0, 8], [1, 8, 4]]
    assert merge_adjacent(rows[1:2]).shape == (0, 3)


def test_the_first_segment_that_zigzag_cannot_cut_is_named_with_its_length():
    # Fails when the message has the start of one segment and the length of another.
    with pytest.raises(LayoutError, match="segment at token 4 has 3 tokens"):
        zigzag_runs(np.array([0, 4, 7, 12]), 2)

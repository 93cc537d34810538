"""Zigzag and contiguous, written out by hand and as partitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preshard.schemas.errors import LayoutError
from preshard.schemas.layout import contiguous_runs, merge_adjacent, segment_edges, slice_positions, zigzag_runs


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

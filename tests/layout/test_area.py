"""Area against the dense mask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.layout.area import allowed_pairs, area_by_rank, attention_area, most_common, shares
from preshard.packer_service.layout.mask import MaskIndex
from preshard.schemas.layout import slice_positions
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays


@given(data=st.data())
def test_area_is_the_number_of_allowed_pairs(masks, data):
    # Fails when a group leaks between documents or branches, or its later members are counted twice.
    mask = data.draw(masks([1, 5, 24, 96]))
    assert attention_area(mask) == dense_mask(mask).sum()


@given(data=st.data(), degree=st.sampled_from([1, 2, 4, 8]))
def test_area_of_a_rank_is_that_of_its_queries(slicings, windows, data, degree):
    # Fails when a slice that cuts a run in its middle takes the run's first query for each of its queries, or a run
    # that is cut by a window counts the keys of its first query for each.
    (mask, runs), window = data.draw(slicings(degree)), data.draw(st.sampled_from(windows))
    index, dense = MaskIndex.of(mask).within(window), dense_mask(mask, window=window)
    assert attention_area(index) == dense.sum()
    expected = [dense[slice_positions(runs, rank)].sum() for rank in range(degree)]
    assert area_by_rank(index, runs, degree).tolist() == expected


def test_empty_and_padding_only_sequences_have_no_area():
    # Fails when padding becomes a document of its own.
    for length in (0, 7):
        pad, zero = np.full(length, -1, np.int32), np.zeros(length, np.int32)
        assert attention_area(MaskArrays(doc_ids=pad, branch_ids=zero, group_ids=zero)) == 0


def test_area_does_not_overflow_at_a_million_tokens():
    # Fails when a run's pairs are summed in 32 bits: one causal document of 2**20 tokens has 2**39 pairs.
    n = 1 << 20
    zero = np.zeros(n, np.int32)
    assert attention_area(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1)) == n * (n + 1) // 2


@given(data=st.data(), cell=st.sampled_from([1, 3, 8, 50, 200]))
def test_cells_count_the_pairs_of_the_matrix(masks, data, cell):
    # Fails when a triangle counts as a square, a group ends at a cell's edge, or a last cell is as long as others.
    mask = data.draw(masks([1, 40, 96]))
    starts = range(0, mask.seq_len, cell)
    dense = dense_mask(mask)
    expected = [[int(dense[i : i + cell, j : j + cell].sum()) for j in starts] for i in starts]
    index = MaskIndex.of(mask)
    assert allowed_pairs(index, cell).tolist() == expected
    sizes = [[dense[i : i + cell, j : j + cell].size for j in starts] for i in starts]
    np.testing.assert_array_equal(shares(index, cell), np.array(expected) / np.array(sizes))


@given(values=st.lists(st.integers(-1, 3) | st.just(2**31 - 1), min_size=1, max_size=40), cell=st.integers(1, 12))
def test_the_most_common_value_of_a_cell(values, cell):
    # Fails when padding (-1) is not counted, the larger of two equally common values wins, cells mix, or memory follows
    # a value of a forged pack.
    cells = [values[at : at + cell] for at in range(0, len(values), cell)]
    expected = [min(set(each), key=lambda value, each=each: (-each.count(value), value)) for each in cells]
    assert most_common(np.array(values, np.int32), cell).tolist() == expected

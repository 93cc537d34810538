"""Cells of a picture against the dense mask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.picture import allowed_pairs, most_common, shares
from preshard.schemas.sequence import dense_mask


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


@given(values=st.lists(st.integers(-1, 3), min_size=1, max_size=40), cell=st.integers(1, 12))
def test_the_most_common_value_of_a_cell(values, cell):
    # Fails when padding (-1) is not counted, the larger of two equally common values wins, or cells mix.
    cells = [values[at : at + cell] for at in range(0, len(values), cell)]
    expected = [min(set(each), key=lambda value, each=each: (-each.count(value), value)) for each in cells]
    assert most_common(np.array(values, np.int32), cell).tolist() == expected

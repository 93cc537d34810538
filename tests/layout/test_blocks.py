"""The block map against the dense mask."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.layout.blocks import block_map, merge_pairs
from preshard.packer_service.layout.mask import MaskIndex
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays


def unfolded(edges: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """The matrix that the spans of each row stand for."""
    matrix = np.zeros((len(edges) - 1, len(edges) - 1), int)
    for row in range(len(matrix)):
        for start, end, tiles in spans[edges[row] : edges[row + 1]]:
            assert (matrix[row, start:end] == 0).all()
            matrix[row, start:end] = tiles
    return matrix


@pytest.mark.parametrize(("block", "tile"), [(1, 1), (4, 4), (8, 4), (12, 4), (4, 8), (6, 4)])
@settings(max_examples=40)  # of six sizes
@given(data=st.data())
def test_entries_are_the_tiles_between_blocks(masks, windows, block, tile, data):
    # Fails when a scattered group is lost between two spans, when the transposed map differs, or when blocks of several
    # tiles are counted as one. A block that is not a whole number of tiles is one tile.
    mask, window = data.draw(masks([48, 96])), data.draw(st.sampled_from(windows))
    found = block_map(MaskIndex.of(mask).within(window), block, tile=tile)
    dense, unit = dense_mask(mask, window=window), tile if block % tile == 0 else block
    tiles = dense.reshape(mask.seq_len // unit, unit, -1, unit).any(axis=(1, 3))
    count, per = mask.seq_len // block, block // unit
    expected = tiles.reshape(count, per, count, per).sum(axis=(1, 3))
    assert unfolded(found.row_edges, found.row_spans).tolist() == expected.tolist()
    assert unfolded(found.column_edges, found.column_spans).T.tolist() == expected.tolist()
    real = (mask.doc_ids >= 0).reshape(count, block).sum(axis=1)
    assert found.loads.tolist() == expected.sum(axis=1).tolist()
    assert found.real.tolist() == real.tolist()
    assert found.row_keys.tolist() == ((expected > 0) @ real).tolist()


@settings(max_examples=40)
@given(data=st.data())
def test_pairs_of_blocks_are_blocks_twice_as_long(masks, data):
    # Fails when tiles of a pair are lost, or spans that end inside of a pair are not rounded to it.
    index = MaskIndex.of(data.draw(masks([48, 96])))
    merged, expected = merge_pairs(block_map(index, 4, tile=4)), block_map(index, 8, tile=4)
    assert [field.tolist() for field in merged] == [field.tolist() for field in expected]


def test_neighbouring_entries_of_equal_tiles_are_one_span():
    # Fails when a row has a span for every block: the searches would take as long as with a dense matrix.
    zero = np.zeros(48, np.int32)
    found = block_map(MaskIndex.of(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1)), 8, tile=4)
    rows = [found.row_spans[start:end].tolist() for start, end in pairwise(found.row_edges.tolist())]
    assert rows == [[[0, 1, 3]], *([[0, row, 4], [row, row + 1, 3]] for row in range(1, 6))]
    columns = [found.column_spans[start:end].tolist() for start, end in pairwise(found.column_edges.tolist())]
    assert columns == [*([[row, row + 1, 3], [row + 1, 6, 4]] for row in range(5)), [[5, 6, 3]]]

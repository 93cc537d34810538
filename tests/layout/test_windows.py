"""Areas, tiles, needs and block maps of the windowed mask against the dense mask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.layout.area import area_by_rank, attention_area
from preshard.packer_service.layout.blocks import block_map
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import measure_layout
from preshard.packer_service.layout.needs import key_blocks_needed, keys_fetched
from preshard.packer_service.layout.tiles import tiles_by_rank, whole_tiles
from preshard.schemas.layout import TokenLayout, define_runs, slice_positions
from preshard.schemas.sequence import MaskArrays, dense_mask, drop_groups, needed_blocks
from tests.layout.test_blocks import unfolded

WINDOWS = st.sampled_from([1, 2, 3, 5, 9, 17, 40, 200])


@given(data=st.data(), degree=st.sampled_from([1, 2, 4, 8]), window=WINDOWS)
def test_areas_of_a_window(slicings, data, degree, window):
    # Fails when a run that is cut by a window counts the keys of its first query for each of its queries.
    mask, runs = data.draw(slicings(degree))
    index, dense = MaskIndex.of(mask).within(window), dense_mask(mask, window=window)
    assert attention_area(index) == dense.sum()
    expected = [dense[slice_positions(runs, rank)].sum() for rank in range(degree)]
    assert area_by_rank(index, runs, degree).tolist() == expected


@settings(max_examples=25)  # of four degrees
@given(data=st.data(), tile=st.sampled_from([1, 2, 3, 4, 7, 16]), window=WINDOWS)
@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_tiles_of_a_window(slicings, brute_tiles, degree, data, tile, window):
    # Fails when two pieces of a chunk are joined over keys that neither sees or holds.
    mask, runs = data.draw(slicings(degree))
    counted = tiles_by_rank(MaskIndex.of(mask).within(window), runs, degree, tile=tile)
    assert counted.tolist() == brute_tiles(mask, runs, degree, tile, window).tolist()


@given(data=st.data(), degree=st.sampled_from([1, 2, 4]), block=st.sampled_from([1, 3, 8]), window=WINDOWS)
def test_needs_of_a_window(slicings, data, degree, block, window):
    # Fails when a rank is sent keys that lie between its queries' windows, or not those of an annotation's prefix.
    mask, runs = data.draw(slicings(degree))
    index, dense = MaskIndex.of(mask).within(window), dense_mask(mask, window=window)
    blocks, fetched = key_blocks_needed(index, runs, degree, block), keys_fetched(index, runs, degree)
    derived = needed_blocks(mask, runs, degree, block, window=window)
    assert derived.dtype == blocks.dtype
    assert derived.tolist() == blocks.tolist()
    for rank in range(degree):
        held = slice_positions(runs, rank)
        needed = dense[held].any(axis=0)
        starts = range(0, mask.seq_len, block)
        assert blocks[rank].tolist() == [bool(needed[s : s + block].any()) for s in starts]
        assert fetched[rank] == np.setdiff1d(np.flatnonzero(needed), held).size


@given(data=st.data(), sizes=st.sampled_from([(1, 1), (4, 4), (8, 4), (4, 8)]), window=WINDOWS)
def test_block_map_of_a_window(masks, data, sizes, window):
    # Fails when a search deals blocks by another mask than the one that is measured.
    block, tile = sizes
    mask = data.draw(masks([48, 96]))
    found = block_map(MaskIndex.of(mask).within(window), block, tile=tile)
    unit = tile if block % tile == 0 else block
    tiles = dense_mask(mask, window=window).reshape(mask.seq_len // unit, unit, -1, unit).any(axis=(1, 3))
    count, per = mask.seq_len // block, block // unit
    expected = tiles.reshape(count, per, count, per).sum(axis=(1, 3))
    assert unfolded(found.row_edges, found.row_spans).tolist() == expected.tolist()
    assert unfolded(found.column_edges, found.column_spans).T.tolist() == expected.tolist()


@given(data=st.data())
def test_without_groups_and_without_a_window(slicings, data):
    # Fails when a mask of an index differs from the mask of its arrays.
    mask, runs = data.draw(slicings(4))
    index, causal = MaskIndex.of(mask), MaskIndex.of(drop_groups(mask))
    assert attention_area(index.without_groups()) == attention_area(causal)
    same = index.without_groups().within(5)
    assert tiles_by_rank(same, runs, 4, tile=3).tolist() == tiles_by_rank(causal.within(5), runs, 4, tile=3).tolist()
    assert keys_fetched(same, runs, 4).tolist() == keys_fetched(causal.within(5), runs, 4).tolist()
    assert keys_fetched(index.within(5).within(None), runs, 4).tolist() == keys_fetched(index, runs, 4).tolist()


def test_measures_of_a_window_at_a_million_tokens():
    # Fails when the floor of a window grows with the square of a document, or a sum overflows.
    n, window, degree = 1 << 20, 1024, 8
    zero = np.zeros(n, np.int32)
    index = MaskIndex.of(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1)).within(window)
    runs = define_runs("contiguous", np.array([0, n]), degree)
    layout = TokenLayout(
        scheme="contiguous", ring_degree=degree, block_size=128, runs=runs, needs=np.zeros((degree, n // 128), bool)
    )
    found = measure_layout(index, layout)
    blocks = n // 128
    assert found.whole_tiles == whole_tiles(index) == 9 * blocks - sum(range(9))
    assert found.area.sum() == window * n - window * (window - 1) // 2
    assert found.keys_fetched.tolist() == [0, *[window - 1] * (degree - 1)]
    assert found.kv_traffic < 0.001

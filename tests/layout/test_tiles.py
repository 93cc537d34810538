"""Tile counts against the dense mask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.tiles import chunk_incidence, tile_map, tiles_by_rank, whole_tiles
from preshard.schemas.mask import dense_mask
from preshard.schemas.schemes import zigzag_runs
from preshard.schemas.sequence import MaskArrays


@settings(max_examples=25)  # of four degrees
@given(data=st.data(), tile=st.sampled_from([1, 2, 3, 4, 7, 16, 200]))
@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_tiles_between_slices(slicings, brute_tiles, windows, degree, data, tile):
    # Fails when a tile is counted once per class, when a last partial tile of a slice runs on into the next slice, or
    # when two pieces of a chunk are joined over keys that neither sees or holds.
    (mask, runs), window = data.draw(slicings(degree)), data.draw(st.sampled_from(windows))
    counted = tiles_by_rank(MaskIndex.of(mask).within(window), runs, degree, tile=tile)
    assert counted.tolist() == brute_tiles(mask, runs, degree, tile, window).tolist()


@given(data=st.data(), tile=st.sampled_from([1, 3, 8]))
def test_tiles_of_the_whole_mask(masks, brute_tiles, data, tile):
    # Fails when the map in natural order and the count disagree about which tiles a scattered group reaches.
    mask = data.draw(masks([1, 40, 96]))
    expected = brute_tiles(mask, np.array([[0, 0, mask.seq_len]], np.int32), 1, tile)[0, 0]
    assert whole_tiles(mask, tile=tile) == expected
    shown = tile_map(MaskIndex.of(mask), tile=tile)
    assert shown.sum() == expected
    dense = dense_mask(mask)
    assert all(dense[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile].any() for i, j in np.argwhere(shown))


def test_zigzag_shatters_short_documents(brute_tiles):
    # Fails when chunks of many documents in one tile are taken for one document: 12 documents of 8 tokens over 4 ranks.
    doc = np.repeat(np.arange(12), 8).astype(np.int32)
    mask = MaskArrays(doc_ids=doc, branch_ids=np.zeros(96, np.int32), group_ids=np.full(96, -1, np.int32))
    runs = zigzag_runs(np.arange(0, 97, 8), 4)
    counted = tiles_by_rank(mask, runs, 4, tile=8)
    assert counted.tolist() == brute_tiles(mask, runs, 4, 8).tolist()
    assert counted.sum() > 3 * whole_tiles(mask, tile=8)


@given(data=st.data(), length=st.sampled_from([1, 3, 8, 200]), degree=st.sampled_from([1, 2, 4]))
def test_edges_enclose_all_entries(slicings, data, length, degree):
    # Fails when a table of edges is one short: a compiled loop would read what lies behind it.
    mask, runs = data.draw(slicings(degree))
    index = MaskIndex.of(mask)
    found = chunk_incidence(index, runs, length)
    tables = [
        (found.seen_edges, len(found.owner), len(found.seen_class)),
        (found.held_edges, len(index.class_root) + len(index.group_root), len(found.held_chunk)),
    ]
    for edges, rows, entries in tables:
        assert len(edges) == rows + 1
        assert (edges[0], edges[-1]) == (0, entries)
        assert (np.diff(edges) >= 0).all()

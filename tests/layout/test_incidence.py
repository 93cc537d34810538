"""The tables of what chunks see and hold."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.tiles import chunk_incidence


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

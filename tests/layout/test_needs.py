"""Needed key blocks and fetched keys against the dense mask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.needs import key_blocks_needed, keys_fetched
from preshard.schemas.layout import slice_positions
from preshard.schemas.mask import dense_mask, needed_blocks


@given(data=st.data(), degree=st.sampled_from([1, 2, 4]), block=st.sampled_from([1, 3, 8]))
def test_needed_blocks_and_fetched_keys(slicings, windows, data, degree, block):
    # Fails when a block is dropped that only a later member of a group makes needed, when held keys are fetched, when a
    # rank is sent keys that lie between its queries' windows or not those of an annotation's prefix, or when the needs
    # of a derived layout differ from those of a packed one.
    (mask, runs), window = data.draw(slicings(degree)), data.draw(st.sampled_from(windows))
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

"""Needed key blocks and fetched keys against the dense mask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.layout.needs import key_blocks_needed, keys_fetched
from preshard.schemas.layout import slice_positions
from preshard.schemas.sequence import dense_mask, needed_blocks


@given(
    data=st.data(), sizes=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 3, 8])), seed=st.integers(0, 2**16)
)
def test_needed_blocks_and_fetched_keys(masks, random_runs, data, sizes, seed):
    # Fails when a block is dropped that only a later member of a group makes needed, when held keys are fetched, or
    # when the needs of a derived layout differ from those of a packed one.
    degree, block = sizes
    mask = data.draw(masks([8, 48, 96]))
    runs = random_runs(mask.seq_len, degree, seed)
    dense = dense_mask(mask)
    blocks, fetched = key_blocks_needed(mask, runs, degree, block), keys_fetched(mask, runs, degree)
    derived = needed_blocks(mask, runs, degree, block)
    assert derived.dtype == blocks.dtype
    assert derived.tolist() == blocks.tolist()
    for rank in range(degree):
        held = slice_positions(runs, rank)
        needed = dense[held].any(axis=0)
        starts = range(0, mask.seq_len, block)
        assert blocks[rank].tolist() == [bool(needed[s : s + block].any()) for s in starts]
        assert fetched[rank] == np.setdiff1d(np.flatnonzero(needed), held).size

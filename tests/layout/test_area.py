"""Area against the dense mask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.layout.area import area_by_rank, attention_area
from preshard.schemas.layout import slice_positions
from preshard.schemas.sequence import MaskArrays, dense_mask


@given(data=st.data())
def test_area_is_the_number_of_allowed_pairs(masks, data):
    # Fails when a group leaks between documents or branches, or its later members are counted twice.
    mask = data.draw(masks([1, 5, 24, 96]))
    assert attention_area(mask) == dense_mask(mask).sum()


@given(data=st.data(), degree=st.sampled_from([1, 2, 4, 8]), seed=st.integers(0, 2**16))
def test_area_of_a_rank_is_that_of_its_queries(masks, random_runs, data, degree, seed):
    # Fails when a slice that cuts a run in its middle takes the run's first query for each of its queries.
    mask = data.draw(masks([8, 48, 96]))
    runs = random_runs(mask.seq_len, degree, seed)
    dense = dense_mask(mask)
    expected = [dense[slice_positions(runs, rank)].sum() for rank in range(degree)]
    assert area_by_rank(mask, runs, degree).tolist() == expected


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

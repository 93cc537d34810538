"""Masks under a window beside those of their arrays, and at a million tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.layout.area import attention_area
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import measure_layout
from preshard.packer_service.layout.needs import keys_fetched
from preshard.packer_service.layout.tiles import tiles_by_rank, whole_tiles
from preshard.schemas.layout import TokenLayout
from preshard.schemas.schemes import define_runs
from preshard.schemas.sequence import MaskArrays, drop_groups


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

"""Rows of ``balance.parquet`` for a pack whose loads can be counted by hand."""

from __future__ import annotations

import numpy as np

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.packs.balance import BalanceRows
from preshard.packer_service.packs.pack import image_boundaries
from preshard.schemas.layout import TILE, TokenLayout
from preshard.schemas.sequence import MaskArrays


def test_every_rank_of_every_load_has_its_row() -> None:
    """Fails when a load is summed along the wrong axis, or a rank has the difference of other edges than its own.

    Four tiles of tokens on two ranks, causal: ten tiles of attention, and two tiles of keys for the second rank to get.
    """
    seq_len, half = 4 * TILE, 2 * TILE
    zero = np.zeros(seq_len, np.int32)
    index = MaskIndex.of(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1))
    layout = TokenLayout(
        scheme="contiguous",
        ring_degree=2,
        block_size=TILE,
        runs=np.array([[0, 0, half], [1, half, half]], np.int32),
        needs=np.array([[True, True, False, False], [True] * 4]),
    )
    loads, crops, pooled = np.array([3, 1, 2]), np.array([2, 3, 6]), np.array([8, 12, 21])
    rows = BalanceRows()
    rows.add_pack(7, index, [layout], image_boundaries(loads, crops, pooled, [2]), crops, loads)
    first = half * (half + 1) // 2
    of_layout = {
        "attention": [first, seq_len * (seq_len + 1) // 2 - first],
        "tiles": [3, 7],
        "ring_step": [3, 4],
        "keys_fetched": [0, half],
    }
    of_images = {"images": [2, 4], "pooled_tokens": [8, 13], "image_load": [3, 3], "least_image_load": [3, 3]}
    expected = [
        (7, kind, "contiguous", 2, rank, load) for kind, of in of_layout.items() for rank, load in enumerate(of)
    ]
    expected += [(7, kind, None, 2, rank, load) for kind, of in of_images.items() for rank, load in enumerate(of)]
    assert [tuple(row.values()) for row in rows.table().to_pylist()] == expected

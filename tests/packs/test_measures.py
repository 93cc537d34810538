"""Rows of ``measures.parquet`` for a pack whose loads can be counted by hand."""

from __future__ import annotations

import numpy as np

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.packs.measures import MeasureRows
from preshard.packer_service.packs.pack import image_boundaries
from preshard.schemas.layout import TILE, TokenLayout
from preshard.schemas.sequence import MaskArrays


def test_every_layout_and_every_split_of_images_has_its_row() -> None:
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
    rows = MeasureRows()
    rows.add_pack(7, index, [layout], image_boundaries(loads, crops, pooled, [2]), crops, loads)
    of_layout, of_images = ({k: v for k, v in row.items() if v is not None} for row in rows.table().to_pylist())
    whole, first = seq_len * (seq_len + 1) // 2, half * (half + 1) // 2
    assert of_layout == {
        "pack_id": 7, "scheme": "contiguous", "degree": 2, "attention_tiles": 10, "gather_path": 7, "ring_path": 7,
        "sum_attention": whole, "most_attention": whole - first, "sum_tiles": 10, "sum_keys": half, "most_keys": half,
        "possible_keys": seq_len, "attention": [first, whole - first], "tiles": [3, 7], "ring_steps": [3, 4],
        "keys_fetched": [0, half],
    }  # fmt: skip
    assert of_images == {
        "pack_id": 7, "degree": 2, "sum_images": 6, "most_images": 4, "sum_pooled_tokens": 21,
        "most_pooled_tokens": 13, "sum_image_load": 6, "most_image_load": 3, "least_image_load": 3, "images": [2, 4],
        "pooled_tokens": [8, 13], "image_load": [3, 3],
    }  # fmt: skip

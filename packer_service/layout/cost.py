"""What a layout costs one attention layer's slowest rank, by a model of two terms: tiles to compute, keys to move."""

from __future__ import annotations

from typing import Any

from preshard.schemas.config import CostConfig
from preshard.schemas.layout import TILE

Number = Any
"""A number, or an array with one entry per pack."""


def key_weight(model: CostConfig) -> float:
    """Time to move one token's keys and values over the time to compute one tile, forward, in one layer.

    Keys and values are two 16-bit vectors per KV head. A tile of 128 x 128 scores and weighted values is
    ``4 * 128 * 128 * heads * head_dim`` FLOPs.

    Args:
        model: heads of the decoder, the speed of its attention kernel and the bandwidth between ranks.
    """
    move_seconds = 2 * 2 * model.num_key_value_heads * model.head_dim / (model.link_gb_per_s * 1e9)
    tile_flops = 4 * TILE * TILE * model.num_attention_heads * model.head_dim
    return move_seconds / (tile_flops / (model.attention_tflops * 1e12))


def ring_cost(ring_path: Number, slice_tokens: int, ring_degree: int, weight: float) -> Number:
    """Cost of ring attention in tiles: every rank receives R - 1 slices, whether it needs them or not.

    Element by element for arrays of packs.
    """
    return ring_path + weight * slice_tokens * (ring_degree - 1)


def gather_cost(gather_path: Number, most_keys_fetched: Number, weight: float) -> Number:
    """Cost of gather attention in tiles: ranks fetch the keys they need first, and the rank that fetches most counts.

    Element by element for arrays of packs.
    """
    return gather_path + weight * most_keys_fetched

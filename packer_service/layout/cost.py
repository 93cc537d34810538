"""What a layout costs one attention layer's slowest rank, by a model of two terms: tiles to compute, keys to move."""

from __future__ import annotations

from typing import Any

from schemas.layout import TILE

Number = Any
"""A number, or an array of one a pack."""


def key_weight_of(
    *,
    num_attention_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    attention_tflops: float,
    link_gb_per_s: float,
) -> float:
    """Time to move one token's keys and values over the time to compute one tile, forward, in one layer.

    Keys and values are two 16-bit vectors a KV head. A tile of 128 x 128 scores and weighted values is
    ``4 * 128 * 128 * heads * head_dim`` FLOPs.

    Args:
        num_attention_heads: query heads.
        num_key_value_heads: key and value heads.
        head_dim: width of a head.
        attention_tflops: speed that the attention kernel reaches, in TFLOP/s.
        link_gb_per_s: bandwidth between ranks, in GB/s a direction.
    """
    move_seconds = 2 * 2 * num_key_value_heads * head_dim / (link_gb_per_s * 1e9)
    tile_seconds = 4 * TILE * TILE * num_attention_heads * head_dim / (attention_tflops * 1e12)
    return move_seconds / tile_seconds


def ring_cost(ring_path: Number, slice_tokens: int, ring_degree: int, key_weight: float) -> Number:
    """Cost of ring attention in tiles: every slice passes every rank, needed or not, which is R - 1 slices.

    Element by element for arrays of packs.
    """
    return ring_path + key_weight * slice_tokens * (ring_degree - 1)


def gather_cost(gather_path: Number, most_keys_fetched: Number, key_weight: float) -> Number:
    """Cost of gather attention in tiles: a rank fetches what it needs first, and the one that fetches most counts.

    Element by element for arrays of packs.
    """
    return gather_path + key_weight * most_keys_fetched

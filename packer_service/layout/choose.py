"""Which layout a pack should take, by a model of two terms: tiles to compute and keys to move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from packer_service.layout.measures import LayoutMeasures
from packer_service.layout.tiles import TILE
from schemas.layout import SCHEMES

Number = Any
"""A number, or an array of one a pack."""


class LayoutCost(NamedTuple):
    """Cost of a layout, in tiles, run by the attention that suits it better."""

    cost: float
    attention: Literal["ring", "gather"]


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


def layout_cost(measures: LayoutMeasures, *, key_weight: float) -> LayoutCost:
    """Cost of one attention layer for the slowest rank: tiles on the critical path plus weighed keys to move.

    With ``gather`` a rank fetches what it needs before its kernel runs, and the rank that fetches most counts. With
    ``ring`` every slice passes every rank, needed or not: R - 1 slices. Of two equal costs ``ring`` is taken, which
    holds fewer keys at a time.

    Args:
        measures: the layout's measures.
        key_weight: time to move one token's keys and values over the time to compute one tile. It follows from the
            model and the machine: ``(bytes of a token's keys and values / bandwidth) / (flops of a tile / speed)``.
    """
    ring = ring_cost(measures.ring_path, int(measures.slice_tokens), measures.ring_degree, key_weight)
    gather = gather_cost(measures.gather_path, int(measures.keys_fetched.max()), key_weight)
    return LayoutCost(ring, "ring") if ring <= gather else LayoutCost(gather, "gather")


def ring_cost(ring_path: Number, slice_tokens: int, ring_degree: int, key_weight: float) -> Number:
    """Cost of ring attention in tiles; element by element for arrays of packs."""
    return ring_path + key_weight * slice_tokens * (ring_degree - 1)


def gather_cost(gather_path: Number, most_keys_fetched: Number, key_weight: float) -> Number:
    """Cost of gather attention in tiles; element by element for arrays of packs."""
    return gather_path + key_weight * most_keys_fetched


def preferred_layout(measures: Sequence[LayoutMeasures], *, key_weight: float) -> LayoutMeasures:
    """The layout of least cost among those of one pack and degree; of equal ones, the first by ``SCHEMES``.

    Raises:
        ValueError: no measures.
    """
    return min(measures, key=lambda m: (layout_cost(m, key_weight=key_weight).cost, SCHEMES.index(m.scheme)))

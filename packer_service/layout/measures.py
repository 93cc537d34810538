"""Costs of a layout: kernel tiles on the critical path, keys to move, and balance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.layout.area import area_by_rank
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.needs import keys_fetched
from preshard.packer_service.layout.tiles import tiles_by_rank, whole_tiles
from preshard.schemas.layout import TILE, TokenLayout, check_partition
from preshard.schemas.sections import CostConfig
from preshard.schemas.sequence import MaskArrays


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayoutMeasures:
    """The measures of one layout of one pack.

    Attributes:
        scheme: the layout's scheme.
        ring_degree: its ring degree R.
        slice_tokens: tokens that each rank holds.
        whole_tiles: tiles of the whole mask in natural order.
        tile_floor: ``whole_tiles / R``; no layout of whole tiles has a shorter critical path.
        tiles: tiles with rows along rank r's slice and columns along rank s's.
        gather_path: largest number of tiles of a rank, when all keys are gathered before the kernel runs.
        ring_path: sum over ring steps of the largest number of tiles of a rank in that step.
        ring_steps: that largest number, step by step; in step t rank r has the keys of rank ``(r - t) mod R``.
        keys_fetched: keys that each rank needs and does not hold, in tokens.
        kv_traffic: their sum over ``seq_len * (R - 1)``: 1.0 is what gathering everything costs.
        area: allowed pairs of each rank's queries.
    """

    scheme: str
    ring_degree: int
    slice_tokens: int
    whole_tiles: int
    tile_floor: float
    tiles: Int64[np.ndarray, "ring ring"]
    gather_path: int
    ring_path: int
    ring_steps: Int64[np.ndarray, "ring"]
    keys_fetched: Int64[np.ndarray, "ring"]
    kv_traffic: float
    area: Int64[np.ndarray, "ring"]


def ring_step_maxima(tiles: Int64[np.ndarray, "ring ring"]) -> Int64[np.ndarray, "ring"]:
    """Largest number of tiles that a rank computes in each ring step."""
    ranks = np.arange(len(tiles))
    by_step = tiles[ranks[None, :], (ranks[None, :] - ranks[:, None]) % len(tiles)]
    largest: Int64[np.ndarray, "ring"] = by_step.max(axis=1)
    return largest


def ring_path(tiles: Int64[np.ndarray, "ring ring"]) -> int:
    """Sum over ring steps of the largest number of tiles of a rank in that step."""
    return int(ring_step_maxima(tiles).sum())


def gather_path(tiles: Int64[np.ndarray, "ring ring"]) -> int:
    """Largest number of tiles of a rank, when all keys are gathered before the kernel runs."""
    return int(tiles.sum(axis=1).max())


def measure_layout(
    mask: MaskArrays | MaskIndex, layout: TokenLayout, *, tile: int = TILE, whole: int | None = None
) -> LayoutMeasures:
    """All measures of a layout, exact.

    Args:
        mask: the pack's mask, or its index where several layouts are measured.
        layout: any partition of the pack into equal slices.
        tile: rows and columns of a kernel tile, in tokens.
        whole: tiles of the whole mask, where they are known already.

    Raises:
        LayoutError: the layout is not a partition into equal slices.
    """
    index, ring_degree = MaskIndex.of(mask), layout.ring_degree
    check_partition(layout, index.seq_len)
    tiles = tiles_by_rank(index, layout.runs, ring_degree, tile=tile)
    whole = whole_tiles(index, tile=tile) if whole is None else whole
    steps = ring_step_maxima(tiles)
    fetched = keys_fetched(index, layout.runs, ring_degree)
    most = index.seq_len * (ring_degree - 1)
    return LayoutMeasures(
        scheme=layout.scheme,
        ring_degree=ring_degree,
        slice_tokens=index.seq_len // ring_degree,
        whole_tiles=whole,
        tile_floor=whole / ring_degree,
        tiles=tiles,
        gather_path=gather_path(tiles),
        ring_path=int(steps.sum()),
        ring_steps=steps,
        keys_fetched=fetched,
        kv_traffic=int(fetched.sum()) / most if most else 0.0,
        area=area_by_rank(index, layout.runs, ring_degree),
    )


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

"""Costs as ``docs/planning.md`` and ``docs/format.md`` state them, with sums over positions and windows one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from preshard.schemas.config import CostConfig, PackConfig, VisionConfig
from preshard.schemas.layout import TILE
from preshard.schemas.model.encoder import VisionEncoder

TRAINING = 6
"""Operations for each multiply-add of the forward pass: two, and three times as many in a training step."""


def pack_cost(config: PackConfig, *, lengths: Sequence[int], area: int, load: int) -> float:
    """Training work in GFLOP. Adds and multiplies in the order that makes a cost the same bits everywhere.

    Args:
        config: the dataset's configuration.
        lengths: real tokens of each document.
        area: allowed pairs of the whole pack.
        load: the vision encoder's work for the pack's units, in multiplications.
    """
    linear = float(_linear_flops(config.cost) * config.seq_len)
    attention = float(_estimated_tiles(lengths, area)) * float(_tile_flops(config.cost))
    vision = float(load) * float(TRAINING)
    return ((linear + attention) + vision) / 1e9


def _estimated_tiles(lengths: Sequence[int], area: int) -> float:
    """``area / TILE**2``, and what causal triangles take beyond their areas, on average over their first positions."""
    position, beyond = np.arange(TILE), 0.0
    for n in lengths:
        rows = (position + n - 1) // TILE + 1
        below = int((rows * (rows - 1) // 2).sum())
        beyond += below / TILE + n / TILE - n * (n + 1) // 2 / TILE**2
    return beyond + area / TILE**2


def _linear_flops(model: CostConfig) -> int:
    projections = (2 * model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
    layer = model.hidden_size * projections + 3 * model.hidden_size * model.intermediate_size
    return TRAINING * (model.num_layers * layer + model.hidden_size * model.vocab_size)


def _tile_flops(model: CostConfig) -> int:
    scores = values = TILE * TILE * model.num_attention_heads * model.head_dim
    return TRAINING * model.num_layers * (scores + values)


def crop_work(model: CostConfig, vision: VisionConfig) -> int:
    """Multiplications that the encoder and its connector take for one square crop, forward."""
    h, p, q = model.vision_hidden_size, vision.patches_per_crop, vision.pooled_per_crop
    layer = p * (4 * h**2 + 2 * h * model.vision_intermediate_size) + 2 * p**2 * h
    patches = 3 * p * vision.patch_size**2 * h
    pooling = (3 * q + 4 * p) * h**2 + 2 * p * h
    connector = q * model.intermediate_size * (2 * h + model.hidden_size)
    return model.vision_num_layers * layer + patches + pooling + connector


def unit_work(encoder: VisionEncoder, sequences: Sequence[tuple[int, int]], rows: int) -> int:
    """Multiplications that a model's encoder takes for one unit, forward.

    Args:
        encoder: its dimensions.
        sequences: patches along height and width of each picture inside of which it attends.
        rows: feature rows that come out.
    """
    h, f = encoder.hidden_size, encoder.intermediate_size
    layers = encoder.layers + encoder.windowed_layers
    total = rows * (encoder.row_inputs * encoder.row_hidden + encoder.row_hidden * encoder.row_outputs)
    for tall, wide in sequences:
        patches = tall * wide
        total += patches * (encoder.patch_inputs * h + layers * (4 * h**2 + encoder.mlp_matrices * h * f))
        total += 2 * h * encoder.layers * patches**2
        if encoder.windowed_layers:
            total += 2 * h * encoder.windowed_layers * _pairs_in_windows(tall, wide, encoder.window_size)
    return total


def _pairs_in_windows(tall: int, wide: int, side: int) -> int:
    """Pairs of patches in the same window of a picture cut from its upper left corner, window by window."""
    heights, widths = ([min(side, n - at) for at in range(0, n, side)] for n in (tall, wide))
    return sum((height * width) ** 2 for height in heights for width in widths)

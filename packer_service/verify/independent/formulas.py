"""Positions, layouts, boundaries and costs as ``docs/format.md`` and ``docs/planning.md`` state them, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
from jaxtyping import Int64

from preshard.schemas.config import PackConfig
from preshard.schemas.header import Unit
from preshard.schemas.layout import TILE
from preshard.schemas.manifest import LayerMasks, VisionEncoder
from preshard.schemas.sections import CostConfig, VisionConfig
from preshard.schemas.sequence import PackedSequence


def derive_positions(
    sequence: PackedSequence, units: Sequence[Unit], n_documents: int, *, axes: int, merge: int
) -> Int64[np.ndarray, "axes seq"]:
    """The values that ``position_ids`` must have, 0 in padding.

    Args:
        sequence: arrays with sound documents, branches and pooled rows.
        units: the pack's units.
        n_documents: documents of the pack.
        axes: 1, or 3 for time, height and width.
        merge: side of the square of patches that a row stands for.
    """
    expected = np.zeros((axes, sequence.seq_len), np.int64)
    unit_of = np.repeat(np.arange(len(units)), [unit.rows for unit in units])
    of_token = np.full(sequence.seq_len, -1)
    if axes > 1:
        filled = sequence.pool_ids >= 0
        of_token[filled] = unit_of[sequence.pool_ids[filled]]
    documents = np.split(np.arange(sequence.seq_len), np.flatnonzero(np.diff(sequence.doc_ids)) + 1)
    for tokens in documents:
        if not 0 <= sequence.doc_ids[tokens[0]] < n_documents:
            continue
        branch = sequence.branch_ids[tokens]
        prefix = tokens[branch == 0]
        for number in range(int(branch.max()) + 1):
            alone = np.concatenate([prefix, tokens[branch == number]]) if number else prefix
            expected[:, alone] = _walk(of_token[alone], units, axes, merge)
    return expected


def _walk(
    of_token: Int64[np.ndarray, "doc"], units: Sequence[Unit], axes: int, merge: int
) -> Int64[np.ndarray, "axes doc"]:
    """Positions of tokens that stand alone, by the unit whose row fills each."""
    if axes == 1:
        return np.arange(len(of_token))[None]
    parts, following = [np.zeros((3, 0), np.int64)], 0
    of_medium = [-1 if unit < 0 else units[unit].medium for unit in of_token.tolist()]
    at = 0
    for medium, run in groupby(of_medium):
        length = len(list(run))
        if medium < 0:
            parts.append(np.tile(np.arange(following, following + length), (3, 1)))
            following += length
        else:
            block = [units[number] for number in dict.fromkeys(of_token[at : at + length].tolist())]
            parts.append(following + _block(block, merge))
            following += max(block[0].grid[1:]) // merge
        at += length
    return np.concatenate(parts, axis=1)


def _block(block: Sequence[Unit], merge: int) -> Int64[np.ndarray, "3 rows"]:
    """Time, height and width of the rows of units that follow each other, from 0."""
    slices = [(unit.grid[1] // merge, unit.grid[2] // merge) for unit in block for _ in range(unit.grid[0])]
    step = np.float32(block[0].time_step)
    rows = [
        [int(np.float32(time) * step), height, width]
        for time, (tall, wide) in enumerate(slices)
        for height in range(tall)
        for width in range(wide)
    ]
    return np.array(rows, np.int64).T


def least_largest_load(loads: Sequence[int], parts: int) -> int:
    """The least possible largest sum of a part when the loads are cut into at most ``parts`` consecutive parts.

    ``best[i]`` is that of the first i loads, for one part more in each turn. The last part begins at some j: then the
    largest is ``max(best[j], totals[i] - totals[j])``. The first of the two grows with j, the second shrinks, so the
    best j is where they meet, or the one before.
    """
    totals = np.concatenate([[0], np.cumsum(np.array(loads, np.int64))])
    best = totals
    for _ in range(min(parts, len(loads)) - 1):
        meet = np.searchsorted(best + totals, totals)
        before = np.maximum(meet - 1, 0)
        best = np.minimum(
            np.maximum(best[meet], totals - totals[meet]), np.maximum(best[before], totals - totals[before])
        )
    return int(best[-1])


Rows = list[list[int]]
"""Rows (ring_rank, start, length)."""


def contiguous(seq_len: int, ring_degree: int) -> Rows:
    """Rank r has the r-th of R equal ranges."""
    length = seq_len // ring_degree
    return [[rank, rank * length, length] for rank in range(ring_degree)]


def zigzag(documents: Sequence[tuple[int, int]], seq_len: int, ring_degree: int) -> Rows:
    """Rank r has chunks r and 2R - 1 - r of each segment's 2R, rows that touch joined.

    Args:
        documents: start and end of each document, its alignment padding included, ascending.
        seq_len: tokens of the pack.
        ring_degree: R; twice this many divides every segment.
    """
    edges = sorted({0, seq_len, *(edge for document in documents for edge in document)})
    rows: Rows = []
    for rank in range(ring_degree):
        for start, end in pairwise(edges):
            chunk = (end - start) // (2 * ring_degree)
            for which in (rank, 2 * ring_degree - 1 - rank):
                at = start + which * chunk
                if rows and rows[-1][0] == rank and rows[-1][1] + rows[-1][2] == at:
                    rows[-1][2] += chunk
                else:
                    rows.append([rank, at, chunk])
    return rows


TRAINING = 6
"""Operations for each multiply-add of the forward pass: two, and three times as many in a training step."""


def pack_cost(
    config: PackConfig, *, lengths: Sequence[int], area: int, load: int, layers: LayerMasks | None = None
) -> float:
    """Training work in GFLOP. Adds and multiplies in the order that makes a cost the same bits everywhere.

    Args:
        config: the dataset's configuration.
        lengths: real tokens of each document.
        area: allowed pairs of the whole pack.
        load: the vision encoder's work for the pack's units, in multiplications.
        layers: the model's, where some have a window: tiles are those of its layers on average.
    """
    linear = float(_linear_flops(config.cost) * config.seq_len)
    tiles, n_layers = _estimated_tiles(lengths, area), 1
    if layers is not None:
        tiles = layers.full_layers * tiles + layers.window_layers * _window_tiles(lengths, layers.window)
        n_layers = layers.full_layers + layers.window_layers
    attention = float(tiles) * float(_tile_flops(config.cost)) / n_layers
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


def _window_tiles(lengths: Sequence[int], window: int) -> float:
    """Tiles of a causal band: below the diagonal, columns from that of the first key of a row's first query on."""
    position, total = np.arange(TILE)[:, None], 0.0
    for n in lengths:
        rows = np.arange((TILE + n - 2) // TILE + 1)
        columns = rows - np.maximum((rows * TILE - window + 1) // TILE, 0)
        total += int((columns * (rows * TILE < position + n)).sum()) / TILE + n / TILE
    return total


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
    k = h if encoder.key_size is None else encoder.key_size
    layers = encoder.layers + encoder.windowed_layers
    total = rows * (encoder.row_inputs * encoder.row_hidden + encoder.row_hidden * encoder.row_outputs)
    for tall, wide in sequences:
        patches = tall * wide
        total += patches * (encoder.patch_inputs * h + layers * (2 * h**2 + 2 * h * k + encoder.mlp_matrices * h * f))
        total += 2 * h * encoder.layers * patches**2
        if encoder.windowed_layers:
            total += 2 * h * encoder.windowed_layers * _pairs_in_windows(tall, wide, encoder.window_size)
    return total


def _pairs_in_windows(tall: int, wide: int, side: int) -> int:
    """Pairs of patches in the same window of a picture cut from its upper left corner, window by window."""
    heights, widths = ([min(side, n - at) for at in range(0, n, side)] for n in (tall, wide))
    return sum((height * width) ** 2 for height in heights for width in widths)

"""The mask as a map of blocks, for the schemes that deal whole blocks.

A row of the map is a block of queries, a column is a block of keys, and an entry is the number of kernel tiles with an
allowed pair between them. Rows and columns are both stored as spans of equal entries: a row of a causal document is one
span, so a map of 8,192 blocks takes a few hundred kilobytes where the matrix would take 64 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.needs import real_before
from preshard.packer_service.layout.tiles import Incidence, chunk_incidence, first_held, whole_run
from preshard.packer_service.numerics import ONE, ZERO, compiled
from preshard.schemas.layout import TILE


class BlockMap(NamedTuple):
    """Tiles between blocks in natural order; a named tuple, since Numba's kernels take one whole.

    Attributes:
        row_edges, row_spans: spans ``row_edges[i]:row_edges[i + 1]`` have rows (first column, end column, tiles).
        column_edges, column_spans: the same for each column: (first row, end row, tiles).
        loads: tiles of each row.
        real: tokens of each block that are not padding.
        row_keys: the same of all blocks that each row sees.
    """

    row_edges: Int64[np.ndarray, "blocks_plus_1"]
    row_spans: Int32[np.ndarray, "row_spans 3"]
    column_edges: Int64[np.ndarray, "blocks_plus_1"]
    column_spans: Int32[np.ndarray, "column_spans 3"]
    loads: Int64[np.ndarray, "blocks"]
    real: Int64[np.ndarray, "blocks"]
    row_keys: Int64[np.ndarray, "blocks"]


@compiled
def _append(counts: np.ndarray, low: int, high: int, spans: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Append the spans of equal counts from ``low`` to ``high`` to the first ``size`` spans, and clear the counts.

    Spans start with room for a few in each row; it doubles where masks are more ragged than that.
    """
    start = low
    while start <= high:
        end = start + 1
        while end <= high and counts[end] == counts[start]:
            end += 1
        if counts[start] > 0:
            if size == len(spans):
                longer = np.empty((2 * size, 3), np.int32)
                for span in range(size):
                    for field in range(3):
                        longer[span, field] = spans[span, field]
                spans = longer
            spans[size, 0], spans[size, 1], spans[size, 2] = start, end, counts[start]
            size += 1
        start = end
    for column in range(low, high + 1):
        counts[column] = 0
    return spans, size


@compiled
def _rows(tiles: Incidence, per_block: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Spans of each row of blocks, from tiles of which ``per_block`` x ``per_block`` make a block; room is left."""
    count = len(tiles.seen_edges) - 1
    marked, counts = np.full(count, -1, np.int32), np.zeros(blocks + 1, np.int32)
    edges, spans, size = np.zeros(blocks + 1, np.int64), np.empty((4 * blocks + 16, 3), np.int32), ZERO
    for block in range(blocks):
        low, high = blocks, -ONE
        for row in range(block * per_block, min(count, (block + 1) * per_block)):
            for entry in range(tiles.seen_edges[row], tiles.seen_edges[row + 1]):
                c, upto = tiles.seen_class[entry], tiles.seen_upto[entry]
                for place in range(first_held(tiles, c, tiles.seen_from[entry]), tiles.held_edges[c + 1]):
                    if tiles.held_from[place] > upto:
                        break
                    column = tiles.held_chunk[place]
                    if marked[column] != row:
                        marked[column] = row
                        counts[column // per_block] += 1
                        low, high = min(low, column // per_block), max(high, column // per_block)
        spans, size = _append(counts, low, high, spans, size)
        edges[block + 1] = size
    return edges, spans


@compiled
def _merge_rows(edges: np.ndarray, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spans of each pair of rows over pairs of columns; room is left."""
    half = len(edges) // 2
    counts, merged_edges = np.zeros(half + 1, np.int32), np.zeros(half + 1, np.int64)
    merged, size = np.empty((4 * half + 16, 3), np.int32), ZERO
    for row in range(half):
        low, high = half, -ONE
        for span in range(edges[2 * row], edges[2 * row + 2]):
            for column in range(spans[span, 0], spans[span, 1]):
                counts[column // 2] += spans[span, 2]
            low, high = min(low, spans[span, 0] // 2), max(high, (spans[span, 1] - 1) // 2)
        merged, size = _append(counts, low, high, merged, size)
        merged_edges[row + 1] = size
    return merged_edges, merged


@compiled
def _transpose(edges: np.ndarray, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spans of each column from those of each row: a column's last span grows as long as rows have the same entry."""
    blocks = len(edges) - 1
    fill = np.zeros(blocks + 1, np.int64)
    out_edges, out = np.zeros(blocks + 1, np.int64), np.empty((0, 3), np.int32)
    for turn in range(2):  # first count the spans of each column, then write them
        last_row, last_tiles = np.full(blocks, -2, np.int32), np.zeros(blocks, np.int32)
        for row in range(blocks):
            for span in range(edges[row], edges[row + 1]):
                tiles = spans[span, 2]
                for column in range(spans[span, 0], spans[span, 1]):
                    grows = last_row[column] == row - 1 and last_tiles[column] == tiles
                    last_row[column], last_tiles[column] = row, tiles
                    if not grows:
                        fill[column] += 1
                    if turn == 1:
                        at = fill[column] - 1
                        if not grows:
                            out[at, 0], out[at, 2] = row, tiles
                        out[at, 1] = row + 1
        if turn == 0:
            for column in range(blocks):
                out_edges[column + 1] = out_edges[column] + fill[column]
                fill[column] = out_edges[column]
            out = np.empty((out_edges[blocks], 3), np.int32)
    return out_edges, out


class WeighedMap(NamedTuple):
    """The map of one mask, and how often its paths count."""

    blocks: BlockMap
    weight: int


def pair_maps(masks: Sequence[WeighedMap]) -> tuple[BlockMap, BlockMap]:
    """The maps of one or two masks. Of one mask its map comes twice: Numba would compile a kernel for each number."""
    return masks[0].blocks, masks[-1].blocks


def sum_loads(masks: Sequence[WeighedMap]) -> Int64[np.ndarray, "blocks"]:
    """Tiles of each row under all masks, each times its weight."""
    total: Int64[np.ndarray, "blocks"] = np.sum([each.weight * each.blocks.loads for each in masks], axis=0)
    return total


def _sum_rows(
    values: Int64[np.ndarray, "row_spans"], row_edges: Int64[np.ndarray, "blocks_plus_1"]
) -> Int64[np.ndarray, "blocks"]:
    return np.diff(np.concatenate([[0], np.cumsum(values)])[row_edges])


def block_map(index: MaskIndex, block_size: int, *, tile: int = TILE) -> BlockMap:
    """The map of ``seq_len / block_size`` blocks.

    Entries count tiles of ``tile`` tokens where a block is a whole number of them; else a block is one tile.
    """
    blocks = index.seq_len // block_size
    unit = tile if block_size % tile == 0 else block_size
    incidence = chunk_incidence(index, whole_run(index.seq_len), unit)
    edges, spans = _rows(incidence, block_size // unit, blocks)
    return _from_rows(edges, spans, np.diff(real_before(index, np.arange(blocks + 1) * block_size)))


def merge_pairs(blocks: BlockMap) -> BlockMap:
    """The map of blocks twice as long, of an even number of blocks. Entries count the same tiles."""
    edges, spans = _merge_rows(blocks.row_edges, blocks.row_spans)
    return _from_rows(edges, spans, blocks.real.reshape(-1, 2).sum(axis=1))


def _from_rows(
    row_edges: Int64[np.ndarray, "blocks_plus_1"],
    with_room: Int32[np.ndarray, "room 3"],
    real: Int64[np.ndarray, "blocks"],
) -> BlockMap:
    row_spans = with_room[: row_edges[-1]].copy()
    column_edges, column_spans = _transpose(row_edges, row_spans)
    span_tiles = (row_spans[:, 1] - row_spans[:, 0]).astype(np.int64) * row_spans[:, 2]
    real_edges = np.concatenate([[0], np.cumsum(real)])
    span_keys = real_edges[row_spans[:, 1]] - real_edges[row_spans[:, 0]]
    return BlockMap(
        row_edges=row_edges,
        row_spans=row_spans,
        column_edges=column_edges,
        column_spans=column_spans,
        loads=_sum_rows(span_tiles, row_edges),
        real=real,
        row_keys=_sum_rows(span_keys, row_edges),
    )

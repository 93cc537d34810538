"""Tiles of the attention matrix that hold at least one allowed pair: what a block-sparse kernel computes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int32, Int64

from preshard.packer_service.layout.incidence import Incidence, chunk_incidence
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.numerics.compiled import compiled
from preshard.schemas.layout import TILE
from preshard.schemas.sequence import MaskArrays


@compiled
def _count(
    rows: Incidence,
    columns: Incidence,
    row_rank: Int32[np.ndarray, "rows"],
    column_rank: Int32[np.ndarray, "columns"],
    tiles: Int64[np.ndarray, "row_ranks column_ranks"],
) -> None:
    """Add to ``tiles[row rank, column rank]`` each pair of a row chunk and a column chunk with an allowed pair."""
    marked = np.full(len(column_rank), -1, np.int32)
    for row in range(len(row_rank)):
        counts = tiles[row_rank[row]]
        for entry in range(rows.seen_edges[row], rows.seen_edges[row + 1]):
            c, upto = rows.seen_class[entry], rows.seen_upto[entry]
            for place in range(columns.held_edges[c], columns.held_edges[c + 1]):
                if columns.held_from[place] > upto:
                    break
                column = columns.held_chunk[place]
                if marked[column] != row:
                    marked[column] = row
                    counts[column_rank[column]] += 1
        for entry in range(rows.seen_group_edges[row], rows.seen_group_edges[row + 1]):
            group = rows.seen_group[entry]
            for place in range(columns.held_group_edges[group], columns.held_group_edges[group + 1]):
                column = columns.held_group_chunk[place]
                if marked[column] != row:
                    marked[column] = row
                    counts[column_rank[column]] += 1


def count_pairs(
    rows: Incidence,
    columns: Incidence,
    row_rank: Int32[np.ndarray, "rows"],
    column_rank: Int32[np.ndarray, "columns"],
) -> Int64[np.ndarray, "row_ranks column_ranks"]:
    """Pairs (row chunk, column chunk) with at least one allowed pair, summed by the ranks given for either."""
    tiles = np.zeros((int(row_rank.max(initial=-1)) + 1, int(column_rank.max(initial=-1)) + 1), np.int64)
    _count(rows, columns, row_rank, column_rank, tiles)
    return tiles


def whole_run(seq_len: int) -> Int32[np.ndarray, "1 3"]:
    """The layout of one rank: everything, in natural order."""
    return np.array([[0, 0, seq_len]], np.int32)


def tiles_by_rank(
    mask: MaskArrays | MaskIndex, runs: Int32[np.ndarray, "runs 3"], ring_degree: int, *, tile: int = TILE
) -> Int64[np.ndarray, "ring ring"]:
    """``tiles[r, s]``: tiles with rows along rank r's slice and columns along rank s's, with an allowed pair.

    Args:
        mask: the mask or its index.
        runs: rows (ring_rank, start, length), rank after rank; each token once.
        ring_degree: number of ring ranks.
        tile: rows and columns of a tile. A slice whose length is not a multiple of it ends in a partial tile.
    """
    incidence = chunk_incidence(MaskIndex.of(mask), runs, tile)
    tiles = np.zeros((ring_degree, ring_degree), np.int64)
    counted = count_pairs(incidence, incidence, incidence.owner, incidence.owner)
    tiles[: counted.shape[0], : counted.shape[1]] = counted
    return tiles


def whole_tiles(mask: MaskArrays | MaskIndex, *, tile: int = TILE) -> int:
    """Tiles of the whole mask in natural order. Divided by the ring degree, this is the tile floor."""
    index = MaskIndex.of(mask)
    return int(tiles_by_rank(index, whole_run(index.seq_len), 1, tile=tile)[0, 0]) if index.seq_len else 0


def tile_map(index: MaskIndex, *, tile: int = TILE) -> Bool[np.ndarray, "blocks blocks"]:
    """Which tiles of the whole mask in natural order hold an allowed pair. For pictures; grows with the square."""
    incidence = chunk_incidence(index, whole_run(index.seq_len), tile)
    each = np.arange(len(incidence.owner), dtype=np.int32)
    return count_pairs(incidence, incidence, each, each) > 0

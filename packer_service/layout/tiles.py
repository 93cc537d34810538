"""Tiles of the attention matrix that hold at least one allowed pair: what a block-sparse kernel computes.

A *chunk* is ``length`` consecutive tokens of a rank's slice: the rows or columns of one tile, or of one block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64

from preshard.packer_service.layout.mask import NO_WINDOW, MaskIndex, run_at
from preshard.packer_service.numerics import compiled
from preshard.schemas.layout import TILE
from preshard.schemas.sequence import MaskArrays

_POSITION_BITS = 32
"""A position has no more: that of a token in a pack is a 32-bit number where runs are stored."""


class Incidence(NamedTuple):
    """Chunks of slices against the classes of a mask; a named tuple, since Numba's kernels take one whole.

    Group classes are numbered behind the classes. Whoever sees one sees all of it that a window leaves, up to the end
    of the sequence. Without a window a chunk has one entry of a class; else one for each piece with nothing between.

    Attributes:
        owner: ring rank of each chunk; chunks run rank after rank, and inside a rank in slice order.
        seen_edges, seen_class, seen_upto, seen_from: entries ``seen_edges[i]:seen_edges[i + 1]`` say that some query of
            chunk i sees the keys of ``seen_class`` from the place ``seen_from`` up to the natural position
            ``seen_upto``.
        held_edges, held_chunk, held_from, held_upto: entries ``held_edges[c]:held_edges[c + 1]`` are the chunks that
            hold keys of class c, the position of each one's first such key and the place of its last, ascending.
    """

    owner: Int32[np.ndarray, "chunks"]
    seen_edges: Int64[np.ndarray, "chunks_plus_1"]
    seen_class: Int32[np.ndarray, "seen"]
    seen_upto: Int64[np.ndarray, "seen"]
    seen_from: Int64[np.ndarray, "seen"]
    held_edges: Int64[np.ndarray, "classes_plus_1"]
    held_chunk: Int32[np.ndarray, "held"]
    held_from: Int64[np.ndarray, "held"]
    held_upto: Int64[np.ndarray, "held"]


@compiled
def _walk(index: MaskIndex, runs: Int32[np.ndarray, "runs 3"], length: int, chunks: int) -> tuple[np.ndarray, ...]:
    """Cuts the slices at the edges of mask runs and chunks, and notes each piece's class and group.

    A piece adds at most four seen entries and two held ones, and there are at most as many pieces as slice runs, mask
    runs and chunks together. ``seen_last[c]`` and ``held_last[c]`` are the chunk in which class c was last noted, so
    that a chunk has one entry per class. Under a window, between two pieces there may be keys that neither of them sees
    or holds, so entries grow only along tokens that follow each other (``seen_stretch`` numbers those stretches).
    """
    run_edges, n_classes = index.run_edges, len(index.class_root)
    most, n_ids = len(runs) + len(index.run_class) + chunks + 1, n_classes + len(index.group_root)
    owner, seen_edges = np.empty(chunks, np.int32), np.zeros(chunks + 1, np.int64)
    seen_class, seen_upto = np.empty(4 * most, np.int32), np.empty(4 * most, np.int64)
    seen_from, held_upto = np.empty(4 * most, np.int64), np.empty(2 * most, np.int64)
    held_chunk, held_class = np.empty(2 * most, np.int32), np.empty(2 * most, np.int32)
    held_from = np.empty(2 * most, np.int64)
    seen_last, seen_at = np.full(n_ids, -1, np.int32), np.empty(n_ids, np.int64)
    held_last, held_at = np.full(n_ids, -1, np.int32), np.empty(n_ids, np.int64)
    sees = np.empty(4, np.int64)  # a piece's class and its root, its group class and its root
    has_window, seen_stretch = index.window < NO_WINDOW, np.empty(n_ids, np.int64)
    stretch, end_before, own_before = 0, np.int64(-1), np.int32(-1)
    seen, held, chunk, filled, rank = 0, 0, -1, length, -1
    for row in range(len(runs)):
        if runs[row, 0] != rank:
            rank, filled = runs[row, 0], length
        at, end = np.int64(runs[row, 1]), np.int64(runs[row, 1]) + runs[row, 2]
        run = run_at(index, at)
        while at < end:
            if filled == length:
                chunk, filled = chunk + 1, 0
                owner[chunk] = rank
            stop = min(end, at + length - filled, run_edges[run + 1])
            own, group = index.run_class[run], index.run_group[run]
            place = index.run_place[run] + at - run_edges[run]
            stretch += at != end_before
            holds_on = not has_window or (at == end_before and own == own_before)
            sees[:] = -1
            if own >= 0:
                sees[0], sees[1] = own, index.class_root[own]
            if group >= 0:
                sees[2] = n_classes + group
                if index.group_root[group] >= 0:
                    sees[3] = n_classes + index.group_root[group]
            for which in range(4):
                c, upto = sees[which], stop - 1 if which < 2 else np.int64(index.seq_len)
                if c < 0:
                    continue
                if seen_last[c] == chunk and (not has_window or seen_stretch[c] == stretch):
                    seen_upto[seen_at[c]] = max(seen_upto[seen_at[c]], upto)
                    seen_from[seen_at[c]] = min(seen_from[seen_at[c]], place - index.window + 1)
                else:
                    seen_last[c], seen_at[c], seen_stretch[c] = chunk, seen, stretch
                    seen_class[seen], seen_upto[seen], seen_from[seen] = c, upto, place - index.window + 1
                    seen += 1
                if which % 2:
                    continue  # a piece holds keys of its own classes, not of their roots
                if held_last[c] == chunk and holds_on:
                    held_from[held_at[c]] = min(held_from[held_at[c]], at)
                    held_upto[held_at[c]] = max(held_upto[held_at[c]], place + stop - at - 1)
                else:
                    held_last[c], held_at[c] = chunk, held
                    held_chunk[held], held_class[held], held_from[held] = chunk, c, at
                    held_upto[held] = place + stop - at - 1
                    held += 1
            seen_edges[chunk + 1] = seen
            filled += stop - at
            at = end_before = stop
            own_before = own
            if at == run_edges[run + 1]:
                run += 1
    return (
        owner,
        seen_edges,
        seen_class[:seen],
        seen_upto[:seen],
        seen_from[:seen],
        held_chunk[:held],
        held_class[:held],
        held_from[:held],
        held_upto[:held],
    )


def chunk_incidence(index: MaskIndex, runs: Int32[np.ndarray, "runs 3"], length: int) -> Incidence:
    """Cuts each rank's slice into chunks of ``length`` tokens (the last may be shorter) and tabulates them.

    Args:
        index: the mask.
        runs: a layout, rank after rank; no token twice.
        length: tokens of a chunk, at least 1.
    """
    slice_lengths = np.bincount(runs[:, 0], weights=runs[:, 2]).astype(np.int64) if len(runs) else np.zeros(0, np.int64)
    chunks = int((-(-slice_lengths // length)).sum())
    owner, seen_edges, seen_class, seen_upto, seen_from, held_chunk, held_class, held_from, held_upto = _walk(
        index, np.ascontiguousarray(runs, np.int32), length, chunks
    )
    by_class = np.argsort((held_class.astype(np.int64) << _POSITION_BITS) + held_from)
    counts = np.bincount(held_class, minlength=len(index.class_root) + len(index.group_root))
    return Incidence(
        owner=owner,
        seen_edges=seen_edges,
        seen_class=seen_class,
        seen_upto=seen_upto,
        seen_from=seen_from,
        held_edges=np.concatenate([[0], np.cumsum(counts)]),
        held_chunk=held_chunk[by_class],
        held_from=held_from[by_class],
        held_upto=held_upto[by_class],
    )


@compiled
def first_held(held: Incidence, c: int, place: np.int64) -> int:
    """The first entry of class c whose last key is at a place or behind it."""
    first, end = held.held_edges[c], held.held_edges[c + 1]
    if first == end or held.held_upto[first] >= place:
        return first
    while end - first > 1:
        middle = (first + end) // 2
        if held.held_upto[middle] >= place:
            end = middle
        else:
            first = middle
    return end


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
            for place in range(first_held(columns, c, rows.seen_from[entry]), columns.held_edges[c + 1]):
                if columns.held_from[place] > upto:
                    break
                column = columns.held_chunk[place]
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
    """Tiles of the whole mask in natural order that hold an allowed pair. For pictures; grows with the square."""
    incidence = chunk_incidence(index, whole_run(index.seq_len), tile)
    each = np.arange(len(incidence.owner), dtype=np.int32)
    return count_pairs(incidence, incidence, each, each) > 0

"""Cost of the mask to each rank of a layout, looked up in :func:`~preshard.schemas.mask.dense_mask` and summed.

The matrix of a pack of 36,864 tokens has 1.4 billion entries, so it is not evaluated token by token. A slice is cut
into *pieces*: consecutive tokens of one document, one branch and one group that lie in one tile. Between two different
pieces the rule of the mask allows every pair or none, and inside a piece every pair or a causal triangle. So its
entries between one query and one key of each piece say what all entries would. A window may end anywhere between two
pieces: then each token is a piece, and a query is compared with the keys that its window can reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32, Int64

from preshard.schemas.layout import TILE
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import PADDING_DOC, MaskArrays, list_places

MOST_PIECES = 1024
"""Pieces along either side of the part of the matrix that is evaluated at once: at most a million entries, some 20 MB
with what is computed on the way."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayoutLoads:
    """Work that a layout gives each ring rank; kinds as in ``measures.parquet``, and the stored ``needs``."""

    attention: list[int]
    tiles: list[int]
    ring_steps: list[int]
    keys_fetched: list[int]
    needs: Bool[np.ndarray, "ring blocks"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _MaskPieces:
    """Pieces of all slices, rank after rank and in slice order; padding is left out."""

    rank: Int64[np.ndarray, "pieces"]
    tile: Int64[np.ndarray, "pieces"]
    first: Int64[np.ndarray, "pieces"]
    last: Int64[np.ndarray, "pieces"]
    doc: Int32[np.ndarray, "pieces"]

    def __len__(self) -> int:
        return len(self.rank)

    def of(self, chosen: slice | np.ndarray) -> _MaskPieces:
        return _MaskPieces(**{name: getattr(self, name)[chosen] for name in self.__slots__})

    def whole_tiles(self) -> Iterator[slice]:
        """Stretches of at most :data:`MOST_PIECES` pieces, cut only between tiles: a tile never has more."""
        edges = [*np.flatnonzero(np.diff(self.tile)) + 1, len(self)]
        start = 0
        for here, following in zip(edges, [*edges[1:], np.inf], strict=True):
            if following - start > MOST_PIECES and here > start:
                yield slice(start, here)
                start = here


def layout_loads(
    mask: MaskArrays, runs: Int32[np.ndarray, "runs 3"], ring_degree: int, block_size: int, window: int | None = None
) -> LayoutLoads:
    """Loads and needs of a layout that is a partition into equal slices, under the full mask or a window."""
    pieces, owner = _cut(mask, runs, by_token=window is not None)
    places = list_places(mask).astype(np.int64)
    area, fetched = np.zeros(ring_degree, np.int64), np.zeros(ring_degree, np.int64)
    tiles = np.zeros((ring_degree, ring_degree), np.int64)
    needs = np.zeros((ring_degree, -(-mask.seq_len // block_size)), bool)
    for rank in range(ring_degree):
        keys = np.zeros(mask.seq_len, bool)
        mine = pieces.of(pieces.rank == rank)
        for rows in mine.whole_tiles():
            if window is None:
                area[rank] += _look_up(mask, mine.of(rows), pieces, tiles[rank], keys)
            else:
                area[rank] += _look_up_tokens(mask, mine.of(rows), pieces, tiles[rank], keys, places, window)
        fetched[rank] = (keys & (owner != rank)).sum()
        needs[rank] = np.logical_or.reduceat(keys, np.arange(0, mask.seq_len, block_size))
    by_step = [[int(tiles[r, (r - step) % ring_degree]) for r in range(ring_degree)] for step in range(ring_degree)]
    return LayoutLoads(
        attention=area.tolist(),
        tiles=tiles.sum(axis=1).tolist(),
        ring_steps=[max(of_step) for of_step in by_step],
        keys_fetched=fetched.tolist(),
        needs=needs,
    )


def whole_mask(mask: MaskArrays, window: int | None = None) -> tuple[int, int]:
    """Allowed pairs of the whole mask, and its tiles in natural order."""
    everything = np.array([[0, 0, mask.seq_len]], np.int32)
    loads = layout_loads(mask, everything, 1, mask.seq_len, window)
    return loads.attention[0], loads.tiles[0]


def _cut(
    mask: MaskArrays, runs: Int32[np.ndarray, "runs 3"], *, by_token: bool
) -> tuple[_MaskPieces, Int64[np.ndarray, "seq"]]:
    """The pieces of a layout, and the rank that holds each token."""
    position = np.concatenate([np.arange(start, start + length) for _, start, length in runs.tolist()])
    rank = np.repeat(runs[:, 0].astype(np.int64), runs[:, 2])
    inside = np.concatenate([np.arange(n) for n in np.bincount(rank)])
    new = (inside % TILE == 0) | (np.diff(position, prepend=-2) != 1) | by_token
    for array in (mask.doc_ids, mask.branch_ids, mask.group_ids):
        new |= np.diff(array[position], prepend=array[position[0]]) != 0
    first = np.flatnonzero(new)
    last = np.concatenate([first[1:], [len(position)]]) - 1
    pieces = _MaskPieces(
        rank=rank[first],
        tile=np.cumsum(inside % TILE == 0)[first],
        first=position[first],
        last=position[last],
        doc=mask.doc_ids[position[first]],
    )
    owner = np.empty(mask.seq_len, np.int64)
    owner[position] = rank
    return pieces.of(pieces.doc != PADDING_DOC), owner


def _look_up(
    mask: MaskArrays,
    rows: _MaskPieces,
    pieces: _MaskPieces,
    tiles: Int64[np.ndarray, "ring"],
    keys: Bool[np.ndarray, "seq"],
) -> int:
    """Allowed pairs of some queries of a rank. Counts their tiles by the keys' ranks, and marks the keys they see."""
    columns = pieces.of(np.isin(pieces.doc, rows.doc))
    area, queries = 0, rows.last - rows.first + 1
    for part in columns.whole_tiles():
        held = columns.of(part)
        some = dense_mask(mask, rows.last, held.first)
        every = dense_mask(mask, rows.first, held.last)
        area += int((queries * (every @ (held.last - held.first + 1))).sum())
        triangles = (some & ~every).any(axis=1)
        area += int((queries * (queries + 1) // 2)[triangles].sum())
        row_tiles, column_tiles = _tile_starts(rows), _tile_starts(held)
        hit = np.logical_or.reduceat(np.logical_or.reduceat(some, row_tiles, axis=0), column_tiles, axis=1)
        np.add.at(tiles, held.rank[column_tiles], hit.sum(axis=0))
        for piece in np.flatnonzero(some.any(axis=0)):
            keys[held.first[piece] : held.last[piece] + 1] = True
    return area


def _look_up_tokens(
    mask: MaskArrays,
    rows: _MaskPieces,
    pieces: _MaskPieces,
    tiles: Int64[np.ndarray, "ring"],
    keys: Bool[np.ndarray, "seq"],
    places: Int64[np.ndarray, "seq"],
    window: int,
) -> int:
    """The same for pieces of one token under a window."""
    in_reach = np.isin(pieces.doc, rows.doc)
    for doc in np.unique(rows.doc):  # of each document, no key before the first window or behind all queries and groups
        mine, own = rows.first[rows.doc == doc], pieces.doc == doc
        grouped = np.isin(mask.group_ids[pieces.first], mask.group_ids[mine][mask.group_ids[mine] >= 0])
        near = places[pieces.first] > places[mine].min() - window
        in_reach &= ~own | (near & ((pieces.first <= mine.max()) | grouped))
    columns, area = pieces.of(in_reach), 0
    row_tiles = _tile_starts(rows)
    for part in columns.whole_tiles():
        held = columns.of(part)
        sees = dense_mask(mask, rows.first, held.first)
        sees &= places[rows.first][:, None] - places[held.first][None, :] < window
        area += int(sees.sum())
        column_tiles = _tile_starts(held)
        hit = np.logical_or.reduceat(np.logical_or.reduceat(sees, row_tiles, axis=0), column_tiles, axis=1)
        np.add.at(tiles, held.rank[column_tiles], hit.sum(axis=0))
        keys[held.first[sees.any(axis=0)]] = True
    return area


def _tile_starts(pieces: _MaskPieces) -> Int64[np.ndarray, "tiles"]:
    return np.flatnonzero(np.diff(pieces.tile, prepend=-1))

"""Tiles of an attention matrix that hold an allowed pair, and those that hold only allowed pairs; without the matrix.

A tile of queries and a tile of keys hold a causal pair when, in some class (document, branch), the last query of the
one comes at or after the first key of the other. A tile has few classes, so these tiles are found by joining two short
sorted lists. They hold a bidirectional pair when they share a bidirectional group. With a window, the last key must
be within the window of the first query, in runs without gaps. The result is exact, and the cost follows the number of
occupied tiles, not the square of the length.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Int64

from preshard.schemas.layout import MOST_TABLES, TABLE_BYTES, TILE, table_tile
from preshard.trainer.attention.mask import MaskTensors

_NO_ID = -2
"""Number below every id, so that the first token begins a run."""


CPU_TILE = (128, 64)
"""Queries and keys of a tile of the CPU's kernel."""


@dataclass(frozen=True, kw_only=True)
class TileList:
    """List of the occupied tiles between some queries and some keys. It holds no token, and can go to another process.

    Rows are tiles of ``q_tile`` queries, columns are tiles of ``k_tile`` keys, each in the order of its set; the last
    tile may be shorter. Row i's columns are ``columns[edges[i]:edges[i + 1]]``: first the ``n_full[i]`` tiles in which
    every pair is allowed, then those in which some are, both ascending. A short last tile never counts as full.
    """

    q_tile: int
    k_tile: int
    edges: Int64[np.ndarray, "rows_plus_1"]
    columns: Int64[np.ndarray, "occupied"]
    n_full: Int64[np.ndarray, "rows"]

    @property
    def empty(self) -> bool:
        """No query sees any key."""
        return not len(self.columns)


@dataclass(frozen=True, kw_only=True)
class Tiles(TileList):
    """The occupied tiles between the queries and the keys of one kernel call, with these."""

    queries: MaskTensors
    keys: MaskTensors

    def alone(self) -> TileList:
        """The list without the tokens."""
        return TileList(**{field.name: getattr(self, field.name) for field in fields(TileList)})

    @property
    def tables(self) -> int:
        """The most bytes of FlexAttention's tables of these tiles, whose rows are as long as the longest."""
        by_key = np.bincount(self.columns, minlength=-(-len(self.keys) // self.k_tile))
        rows = (np.diff(self.edges), by_key)
        return TABLE_BYTES // 2 * sum(len(of_axis) * int(of_axis.max(initial=2)) for of_axis in rows)

    @classmethod
    def of(cls, listed: TileList, queries: MaskTensors, keys: MaskTensors) -> Tiles:
        """A list and the tokens that it was made for."""
        return cls(
            queries=queries, keys=keys, **{field.name: getattr(listed, field.name) for field in fields(TileList)}
        )


def list_for(device_type: str, queries: MaskTensors, keys: MaskTensors) -> Tiles:
    """The occupied tiles in the sizes of the kernel for a type of device.

    A GPU's kernel keeps tables of them, whose rows are as long as the longest. Its tiles are of :data:`TILE` tokens, or
    of the least multiple by a power of two with which the tables surely stay below ``MOST_TABLES``: in long packs of
    long documents, where coarse tiles add little work.
    """
    if device_type == "cpu":
        return list_tiles(queries, keys, q_tile=CPU_TILE[0], k_tile=CPU_TILE[1])
    coarse = tile = table_tile(len(queries), len(keys))
    tiles = list_tiles(queries, keys, q_tile=tile, k_tile=tile)
    # With half the side there are twice as many rows, which are at most twice as long.
    halvings = 1
    while tile > TILE and 4**halvings * tiles.tables <= MOST_TABLES:
        tile, halvings = tile // 2, halvings + 1
    return tiles if tile == coarse else list_tiles(queries, keys, q_tile=tile, k_tile=tile)


def count_occupied(queries: MaskTensors, keys: MaskTensors) -> int:
    """Tiles of :data:`TILE` tokens that are occupied. In long sets only edges of documents are looked at so closely."""
    tiles = list_for("cuda", queries, keys)
    if tiles.q_tile == TILE:
        return len(tiles.columns)
    found = int(tiles.n_full.sum()) * (tiles.q_tile // TILE) ** 2
    for row, (start, stop) in enumerate(zip(tiles.edges[:-1] + tiles.n_full, tiles.edges[1:], strict=True)):
        of_row = np.arange(row * tiles.q_tile, min((row + 1) * tiles.q_tile, len(queries)))
        met = (tiles.columns[start:stop, None] * tiles.k_tile + np.arange(tiles.k_tile)).ravel()
        some = queries.at(of_row), keys.at(met[met < len(keys)])
        found += len(list_tiles(*some, q_tile=TILE, k_tile=TILE).columns)
    return found


def list_tiles(queries: MaskTensors, keys: MaskTensors, *, q_tile: int, k_tile: int) -> Tiles:
    """The occupied tiles between two sets of tokens."""
    n_rows, n_columns = -(-len(queries) // q_tile), max(-(-len(keys) // k_tile), 1)
    pairs = np.unique(
        np.concatenate([_causal_pairs(queries, keys, q_tile, k_tile), _group_pairs(queries, keys, q_tile, k_tile)])
    )
    rows, columns = np.divmod(pairs, n_columns)
    full = _full(queries, keys, rows, columns, q_tile, k_tile)
    order = np.lexsort((columns, ~full, rows))
    return Tiles(
        queries=queries,
        keys=keys,
        q_tile=q_tile,
        k_tile=k_tile,
        edges=np.searchsorted(rows, np.arange(n_rows + 1)),
        columns=columns[order],
        n_full=np.bincount(rows[full], minlength=n_rows),
    )


@dataclass(frozen=True, kw_only=True)
class _Runs:
    """Runs of neighbouring tokens with equal ids, cut at the edges of tiles: one entry per run, padding left out.

    With a window, positions of a run have no gap, and ``first_place`` and ``last_place`` are the places of its first
    and last token; else they are 0.
    """

    tile: np.ndarray
    doc: np.ndarray
    branch: np.ndarray
    group: np.ndarray
    first: np.ndarray
    last: np.ndarray
    first_place: np.ndarray
    last_place: np.ndarray


def _find_runs(tokens: MaskTensors, tile: int, *, by_group: bool) -> _Runs:
    """Runs of one document and branch, and with ``by_group`` of one bidirectional group; causal tokens have none."""
    doc, branch, group = (
        a.astype(np.int64) for a in (tokens.host.doc_ids, tokens.host.branch_ids, tokens.host.group_ids)
    )
    tile_of = np.arange(len(tokens)) // tile
    alike = [tile_of, doc, branch, group] if by_group else [tile_of, doc, branch]
    cuts = np.any([np.diff(ids, prepend=_NO_ID) != 0 for ids in alike], axis=0)
    positions = tokens.host_positions
    if tokens.host_places is not None:
        cuts |= np.diff(positions, prepend=_NO_ID) != 1
    starts = np.flatnonzero(cuts)
    first = np.minimum.reduceat(positions, starts) if len(starts) else positions
    last = np.maximum.reduceat(positions, starts) if len(starts) else positions
    kept = (doc[starts] >= 0) & ((group[starts] >= 0) | (not by_group))
    at, ends = starts[kept], np.append(starts[1:], len(positions))[kept] - 1
    places = np.zeros(len(positions), np.int64) if tokens.host_places is None else tokens.host_places
    return _Runs(
        **{"tile": tile_of[at], "doc": doc[at], "branch": branch[at], "group": group[at]},
        **{"first": first[kept], "last": last[kept], "first_place": places[at], "last_place": places[ends]},
    )


def _causal_pairs(queries: MaskTensors, keys: MaskTensors, q_tile: int, k_tile: int) -> Int64[np.ndarray, "pairs"]:
    """Tiles with a key before a query of its document that may see its branch, as row * columns + column."""
    q, k = _find_runs(queries, q_tile, by_group=False), _find_runs(keys, k_tile, by_group=False)
    n_columns = max(-(-len(keys) // k_tile), 1)
    width = 1 + max(q.branch.max(initial=0), k.branch.max(initial=0))
    span = 1 + max(q.last.max(initial=0), k.last.max(initial=0))
    found = []
    for branch, asks in _seen_branches(q.branch):
        known, of_key = np.unique(k.doc * width + k.branch, return_inverse=True)
        held, of_query = of_key * span + k.first, _place(known, (q.doc * width + branch)[asks])
        order = np.argsort(held, kind="stable")
        # In one class the runs of keys without gaps have their places in the order of their positions.
        reached = (of_key * span + k.last_place)[order]
        begin = np.searchsorted(reached, of_query * span + _nearest(queries, q, asks), side="left")
        end = np.searchsorted(held[order], of_query * span + q.last[asks], side="right")
        found.append(_join(q.tile[asks], k.tile[order], begin, np.where(of_query >= 0, end, begin), n_columns))
    return np.concatenate(found)


def _group_pairs(queries: MaskTensors, keys: MaskTensors, q_tile: int, k_tile: int) -> Int64[np.ndarray, "pairs"]:
    """Tiles with a query and a key of one bidirectional group whose branch the query may see."""
    q, k = _find_runs(queries, q_tile, by_group=True), _find_runs(keys, k_tile, by_group=True)
    n_columns = max(-(-len(keys) // k_tile), 1)
    docs = np.unique(np.concatenate([q.doc, k.doc]))
    groups = np.unique(np.concatenate([q.group, k.group]))
    width = 1 + max(q.branch.max(initial=0), k.branch.max(initial=0))
    q_pair = np.searchsorted(docs, q.doc) * len(groups) + np.searchsorted(groups, q.group)
    k_pair = np.searchsorted(docs, k.doc) * len(groups) + np.searchsorted(groups, k.group)
    span = 1 + max(q.first_place.max(initial=0), k.last_place.max(initial=0))
    held = (k_pair * width + k.branch) * span + k.last_place
    order = np.argsort(held, kind="stable")
    found = []
    for branch, asks in _seen_branches(q.branch):
        key = (q_pair * width + branch)[asks] * span
        begin = np.searchsorted(held[order], key + _nearest(queries, q, asks), side="left")
        end = np.searchsorted(held[order], key + span - 1, side="right")
        found.append(_join(q.tile[asks], k.tile[order], begin, end, n_columns))
    return np.concatenate(found)


def _nearest(queries: MaskTensors, runs: _Runs, asks: np.ndarray) -> np.ndarray:
    """The first place that the first query of each run sees; 0 without a window."""
    first: np.ndarray = runs.first_place[asks]
    return np.zeros_like(first) if queries.window is None else np.maximum(first - queries.window + 1, 0)


def _seen_branches(branch: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Branches that query runs see: their own and, from an annotation, the prefix. (branch of each, who looks)."""
    everyone, annotated = np.ones(len(branch), bool), branch != 0
    return [(branch, everyone), (np.zeros_like(branch), annotated)]


def _place(known: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The index of each value among the sorted known ones; -1 where it is not one of them."""
    if not len(known):
        return np.full(len(asked), -1, np.int64)
    place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return np.where(known[place] == asked, place, -1)


def _join(
    rows: np.ndarray, columns: np.ndarray, begin: np.ndarray, end: np.ndarray, n_columns: int
) -> Int64[np.ndarray, "pairs"]:
    """Pairs of each query run with the columns from ``begin`` up to ``end``, if there are any."""
    count = np.maximum(end - begin, 0)
    at = np.arange(count.sum()) + np.repeat(begin - (np.cumsum(count) - count), count)
    return np.repeat(rows, count) * n_columns + columns[at]


@dataclass(frozen=True, kw_only=True)
class _Ranges:
    """Smallest and largest value of each tile."""

    low: np.ndarray
    high: np.ndarray

    @property
    def single(self) -> np.ndarray:
        return self.low == self.high


def _ranges(values: np.ndarray, tile: int) -> _Ranges:
    starts = np.arange(0, len(values), tile)
    return _Ranges(low=np.minimum.reduceat(values, starts), high=np.maximum.reduceat(values, starts))


def _full(
    queries: MaskTensors, keys: MaskTensors, rows: np.ndarray, columns: np.ndarray, q_tile: int, k_tile: int
) -> Bool[np.ndarray, "occupied"]:
    """Whether every pair of a tile is allowed. Missing a full tile is harmless: it is then computed with its mask."""
    if not len(rows):
        return np.zeros(0, bool)
    doc_q, doc_k = _ranges(queries.host.doc_ids, q_tile), _ranges(keys.host.doc_ids, k_tile)
    branch_q, branch_k = _ranges(queries.host.branch_ids, q_tile), _ranges(keys.host.branch_ids, k_tile)
    group_q, group_k = _ranges(queries.host.group_ids, q_tile), _ranges(keys.host.group_ids, k_tile)
    place_q, place_k = _ranges(queries.host_positions, q_tile), _ranges(keys.host_positions, k_tile)
    one_doc = doc_q.single[rows] & doc_k.single[columns] & (doc_q.low[rows] == doc_k.low[columns])
    same_branch = branch_q.single[rows] & branch_k.single[columns] & (branch_q.low[rows] == branch_k.low[columns])
    behind = place_k.high[columns] <= place_q.low[rows]
    one_group = group_q.single[rows] & group_k.single[columns] & (group_q.low[rows] == group_k.low[columns])
    whole = ((rows + 1) * q_tile <= len(queries)) & ((columns + 1) * k_tile <= len(keys))
    if queries.window is not None and queries.host_places is not None and keys.host_places is not None:
        farthest = _ranges(queries.host_places, q_tile).high[rows] - _ranges(keys.host_places, k_tile).low[columns]
        whole &= farthest < queries.window
    return (
        (one_doc & (doc_q.low[rows] >= 0) & whole)
        & (same_branch | (branch_k.high[columns] == 0))
        & (behind | (one_group & (group_q.low[rows] >= 0)))
    )

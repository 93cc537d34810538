"""Part of a context-parallel rank: its slice of the tokens and its part of the images."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Int32, Int64
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from preshard.schemas.errors import LayoutError

Scheme = Literal["contiguous", "zigzag", "balanced_ring", "balanced_gather"]

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
"""Token layout schemes, in the order in which they are stored."""

BLOCK_SCHEMES = ("balanced_ring", "balanced_gather")
"""Schemes that deal whole blocks of ``block_size`` tokens."""

TILE = 128
"""Side of an attention tile in tokens: the default block of FlexAttention, and that of FlashAttention-2/3 kernels at
head_dim 128. Stored loads count such tiles, and costs weigh them."""

TABLE_BYTES, MOST_TABLES = 16, 2**30
"""FlexAttention has four tables of tiles: full and partial ones, by queries and by keys, as 32-bit numbers. And the
bytes that those of one call of the kernel may take."""


def table_tile(queries: float, keys: float) -> int:
    """Side of the tiles in tables that fit however many are occupied: :data:`TILE`, or the least multiple 2 ** n."""
    tile = TILE
    while table_bytes(queries, keys, tile) > MOST_TABLES:
        tile *= 2
    return tile


def table_bytes(queries: float, keys: float, tile: int | None = None) -> int:
    """Bytes of these tables if one document fills the pack; by default, with the side that they have then."""
    side = tile or table_tile(queries, keys)
    return TABLE_BYTES * max(ceil(queries / side), 2) * max(ceil(keys / side), 2)


def layout_name(scheme: str, ring_degree: int) -> str:
    """Name of a layout's array in ``KEY.layouts.npz``."""
    return f"{scheme}.ring{ring_degree}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLayout:
    """Distribution of a sequence by one scheme over ``ring_degree`` ring ranks.

    ``runs`` has rows (ring_rank, start, length), rank after rank and, within a rank, in slice order: the slice of rank
    r consists of the natural ranges ``[start, start + length)`` of its rows, one after the other. ``needs[r, b]`` says
    whether any query of rank r sees any key of block b of ``block_size`` tokens in natural order. ``window_needs`` says
    the same of layers with a sliding window; it is None where no window is shorter than packs.
    """

    scheme: str
    ring_degree: int
    block_size: int
    runs: Int32[np.ndarray, "runs 3"]
    needs: Bool[np.ndarray, "ring blocks"]
    window_needs: Bool[np.ndarray, "ring blocks"] | None = None

    @property
    def name(self) -> str:
        return layout_name(self.scheme, self.ring_degree)


def check_partition(layout: TokenLayout, seq_len: int) -> None:
    """Checks that every token is on exactly one rank, that ranks come in order, and that all slices are equally long.

    Raises:
        LayoutError: they are not; names the first position or rank that is wrong.
    """
    runs, name = layout.runs, layout.name
    ranks = runs[:, 0]
    if len(runs) and (ranks.min() < 0 or ranks.max() >= layout.ring_degree or (np.diff(ranks) < 0).any()):
        raise LayoutError(f"layout {name}: rows must come rank after rank, 0 to {layout.ring_degree - 1}")
    by_start = runs[np.argsort(runs[:, 1], kind="stable")].astype(np.int64)
    starts, ends = by_start[:, 1], by_start[:, 1] + by_start[:, 2]
    expected = np.concatenate([[0], ends])
    wrong = np.flatnonzero(np.concatenate([starts, [seq_len]]) != expected)
    if len(wrong) or (by_start[:, 2] <= 0).any():
        at = int(expected[wrong[0]]) if len(wrong) else int(starts[by_start[:, 2] <= 0][0])
        raise LayoutError(f"layout {name}: token {at} of {seq_len} is not on exactly one rank")
    slices = np.zeros(layout.ring_degree, np.int64)
    np.add.at(slices, ranks, runs[:, 2])
    if (slices * layout.ring_degree != seq_len).any():
        bad = int(np.flatnonzero(slices * layout.ring_degree != seq_len)[0])
        raise LayoutError(
            f"layout {name}: rank {bad} holds {slices[bad]} tokens; each must hold {seq_len / layout.ring_degree:g}"
        )


def slice_positions(runs: Int32[np.ndarray, "runs 3"], ring_rank: int) -> Int64[np.ndarray, "slice"]:
    """Natural positions of the tokens in the slice of a ring rank, in slice order."""
    mine = runs[runs[:, 0] == ring_rank]
    if not len(mine):
        return np.zeros(0, np.int64)
    starts, lengths = mine[:, 1].astype(np.int64), mine[:, 2].astype(np.int64)
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)


def rank_positions(
    runs: Int32[np.ndarray, "runs 3"], *, ring_rank: int, ulysses_degree: int = 1, ulysses_rank: int = 0
) -> Int64[np.ndarray, "local"]:
    """Natural positions of the tokens of one CP rank: the ``ulysses_rank``-th of the equal pieces of its ring slice.

    Raises:
        ValueError: the slice does not divide by ``ulysses_degree``.
    """
    positions = slice_positions(runs, ring_rank)
    if len(positions) % ulysses_degree:
        raise ValueError(f"a slice of {len(positions)} tokens does not divide by ulysses_degree {ulysses_degree}")
    piece = len(positions) // ulysses_degree
    return positions[ulysses_rank * piece : (ulysses_rank + 1) * piece]


@with_config(ConfigDict(extra="forbid", strict=True))
class RankImages(TypedDict):
    """The crops of one rank, in the form that Molmo2 reads (allenai/molmo2, ``image_shard_boundaries``).

    ``*_image_idx`` count crops and ``*_pool_idx`` rows of pooled vision features; both ranges are half open.
    ``max_num_tokens`` is the largest number of pooled rows of any rank in the group: ranks pad to it before a gather.
    """

    start_image_idx: int
    end_image_idx: int
    start_pool_idx: int
    end_pool_idx: int
    max_num_tokens: int


def boundaries_from_edges(
    edges: Int64[np.ndarray, "ranks_plus_1"],
    cum_image_bounds: Int64[np.ndarray, "units"],
    cum_token_pooling_bounds: Int64[np.ndarray, "units"],
) -> dict[str, RankImages]:
    """Contiguous boundaries over units in Molmo2's form. Keys are ranks, as strings, since JSON knows no other keys.

    Args:
        edges: rank r holds the units ``edges[r]:edges[r + 1]``.
        cum_image_bounds: crops up to and including each unit.
        cum_token_pooling_bounds: pooled rows up to and including each unit.
    """
    images = np.concatenate([[0], cum_image_bounds])[edges]
    pooled = np.concatenate([[0], cum_token_pooling_bounds])[edges]
    largest = int(np.diff(pooled).max())
    return {
        str(rank): RankImages(
            start_image_idx=int(images[rank]),
            end_image_idx=int(images[rank + 1]),
            start_pool_idx=int(pooled[rank]),
            end_pool_idx=int(pooled[rank + 1]),
            max_num_tokens=largest,
        )
        for rank in range(len(edges) - 1)
    }


def segment_edges(
    starts: Int64[np.ndarray, "documents"], aligned_lengths: Int64[np.ndarray, "documents"], seq_len: int
) -> Int64[np.ndarray, "segments_plus_1"]:
    """Edges of the segments that zigzag cuts: documents with their alignment padding, and the gaps between them.

    A gap (a document that failed to decode, the padding at the end) is a segment of its own.

    Raises:
        LayoutError: a document overlaps the one before it or reaches past ``seq_len``.
    """
    order = np.argsort(starts, kind="stable")
    first = np.asarray(starts, np.int64)[order]
    last = first + np.asarray(aligned_lengths, np.int64)[order]
    before, after = np.concatenate([[0], last]), np.concatenate([first, [seq_len]])
    if (wrong := np.flatnonzero(before > after)).size:
        at = int(wrong[0])
        raise LayoutError(f"a document that ends at token {before[at]} reaches past {after[at]}, where the next begins")
    edges = np.concatenate([[0], np.stack([first, last], axis=1).reshape(-1), [seq_len]])
    return edges[np.diff(edges, prepend=-1) > 0]  # in order as they are: np.unique imports masked arrays, for 12 ms


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class UnitParts:
    """Parts that ranks are dealt whole, in stored order: units, or single crops of them.

    Attributes:
        crops: crops up to and including each part.
        rows: pooled rows up to and including each part.
        loads: the encoder's work for each part.
    """

    crops: Int64[np.ndarray, "parts"]
    rows: Int64[np.ndarray, "parts"]
    loads: Int64[np.ndarray, "parts"]


def unit_parts(
    crops: Int64[np.ndarray, "units"],
    rows: Int64[np.ndarray, "units"],
    loads: Int64[np.ndarray, "units"],
    *,
    shares_crops: bool,
) -> UnitParts:
    """The parts of a pack's units.

    Args:
        crops: crops up to and including each unit, in stored order.
        rows: pooled rows up to and including each unit.
        loads: the encoder's work for each unit.
        shares_crops: whether ranks may share a unit's crops, which then have equal rows and loads.
    """
    if not shares_crops:
        return UnitParts(crops=crops, rows=rows, loads=loads)
    counts = np.diff(crops, prepend=0)
    rows_of_crops = np.repeat(np.diff(rows, prepend=0) // np.maximum(counts, 1), counts)
    return UnitParts(
        crops=np.arange(1, len(rows_of_crops) + 1),
        rows=np.cumsum(rows_of_crops),
        loads=np.repeat(loads // np.maximum(counts, 1), counts),
    )

"""What the queries of each chunk of a slice see, and which chunks hold the keys of each class.

A *chunk* is ``length`` consecutive tokens of a rank's slice: the rows or columns of one tile, one block, or a whole
slice. All counting (tiles, blocks needed, keys fetched) walks over these two sparse tables.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from preshard.packer_service.layout.mask import MaskIndex, run_at
from preshard.packer_service.numerics.compiled import compiled

_POSITION_BITS = 32
"""A position has no more: that of a token in a pack is a 32-bit number where runs are stored."""


class Incidence(NamedTuple):
    """Chunks of slices against the classes of a mask; a named tuple, since Numba's kernels take one whole.

    Attributes:
        owner: ring rank of each chunk; chunks run rank after rank, and inside a rank in slice order.
        seen_edges, seen_class, seen_upto: entries ``seen_edges[i]:seen_edges[i + 1]`` say that some query of chunk i
            sees the keys of ``seen_class`` up to the natural position ``seen_upto``.
        seen_group_edges, seen_group: group classes all of whose members some query of chunk i sees.
        held_edges, held_chunk, held_from: entries ``held_edges[c]:held_edges[c + 1]`` are the chunks that hold keys of
            class c and each one's first such key, ascending by that key.
        held_group_edges, held_group_chunk: the chunks that hold keys of each group class.
    """

    owner: Int32[np.ndarray, "chunks"]
    seen_edges: Int64[np.ndarray, "chunks_plus_1"]
    seen_class: Int32[np.ndarray, "seen"]
    seen_upto: Int64[np.ndarray, "seen"]
    seen_group_edges: Int64[np.ndarray, "chunks_plus_1"]
    seen_group: Int32[np.ndarray, "seen_groups"]
    held_edges: Int64[np.ndarray, "classes_plus_1"]
    held_chunk: Int32[np.ndarray, "held"]
    held_from: Int64[np.ndarray, "held"]
    held_group_edges: Int64[np.ndarray, "groups_plus_1"]
    held_group_chunk: Int32[np.ndarray, "held_groups"]


@compiled
def _walk(index: MaskIndex, runs: Int32[np.ndarray, "runs 3"], length: int, chunks: int) -> tuple[np.ndarray, ...]:
    """Cut the slices at the edges of mask runs and chunks, and note each piece's class and group.

    A piece adds at most two seen entries and one held entry of each kind, and there are at most as many pieces as slice
    runs, mask runs and chunks together. ``seen_last[c]`` and ``held_last[c]`` are the chunk in which class c was last
    noted, so that a chunk has one entry per class.
    """
    run_edges, run_class, run_group = index.run_edges, index.run_class, index.run_group
    class_root, group_root = index.class_root, index.group_root
    most = len(runs) + len(run_class) + chunks + 1
    classes, groups = len(class_root), len(group_root)
    owner = np.empty(chunks, np.int32)
    seen_edges, seen_group_edges = np.zeros(chunks + 1, np.int64), np.zeros(chunks + 1, np.int64)
    seen_class, seen_upto, seen_group = (
        np.empty(2 * most, np.int32),
        np.empty(2 * most, np.int64),
        np.empty(2 * most, np.int32),
    )
    held_chunk, held_class, held_from = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int64)
    held_group, held_group_chunk = np.empty(most, np.int32), np.empty(most, np.int32)
    seen_last, seen_at = np.full(classes, -1, np.int32), np.empty(classes, np.int64)
    held_last, held_at = np.full(classes, -1, np.int32), np.empty(classes, np.int64)
    seen_group_last, held_group_last = np.full(groups, -1, np.int32), np.full(groups, -1, np.int32)
    seen, seen_groups, held, held_groups, chunk, filled, rank = 0, 0, 0, 0, -1, length, -1
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
            first = run_class[run]
            for turn in range(2):
                c = first if turn == 0 or first < 0 else class_root[first]
                if c < 0 or (turn == 1 and c == first):
                    continue
                if seen_last[c] == chunk:
                    seen_upto[seen_at[c]] = max(seen_upto[seen_at[c]], stop - 1)
                else:
                    seen_last[c], seen_at[c] = chunk, seen
                    seen_class[seen], seen_upto[seen] = c, stop - 1
                    seen += 1
            if first >= 0:
                if held_last[first] == chunk:
                    held_from[held_at[first]] = min(held_from[held_at[first]], at)
                else:
                    held_last[first], held_at[first] = chunk, held
                    held_chunk[held], held_class[held], held_from[held] = chunk, first, at
                    held += 1
            own = run_group[run]
            if own >= 0:
                if held_group_last[own] != chunk:
                    held_group_last[own] = chunk
                    held_group[held_groups], held_group_chunk[held_groups] = own, chunk
                    held_groups += 1
                if seen_group_last[own] != chunk:
                    seen_group_last[own] = chunk
                    seen_group[seen_groups] = own
                    seen_groups += 1
                root = group_root[own]
                if root >= 0 and seen_group_last[root] != chunk:
                    seen_group_last[root] = chunk
                    seen_group[seen_groups] = root
                    seen_groups += 1
            seen_edges[chunk + 1], seen_group_edges[chunk + 1] = seen, seen_groups
            filled += stop - at
            at = stop
            if at == run_edges[run + 1]:
                run += 1
    return (
        owner, seen_edges, seen_class[:seen], seen_upto[:seen], seen_group_edges, seen_group[:seen_groups],
        held_chunk[:held], held_class[:held], held_from[:held],
        held_group[:held_groups], held_group_chunk[:held_groups],
    )  # fmt: skip


def _edges(ids: Int32[np.ndarray, "entries"], count: int) -> Int64[np.ndarray, "count_plus_1"]:
    """Where the entries of each id begin and end once they are sorted by it."""
    return np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=count))])


def chunk_incidence(index: MaskIndex, runs: Int32[np.ndarray, "runs 3"], length: int) -> Incidence:
    """Cut each rank's slice into chunks of ``length`` tokens (the last may be shorter) and tabulate them.

    Args:
        index: the mask.
        runs: a layout, rank after rank; no token twice.
        length: tokens of a chunk, at least 1.
    """
    slice_lengths = np.bincount(runs[:, 0], weights=runs[:, 2]).astype(np.int64) if len(runs) else np.zeros(0, np.int64)
    chunks = int((-(-slice_lengths // length)).sum())
    (owner, seen_edges, seen_class, seen_upto, seen_group_edges, seen_group,
     held_chunk, held_class, held_from, held_group, held_group_chunk) = _walk(
        index, np.ascontiguousarray(runs, np.int32), length, chunks
    )  # fmt: skip
    by_class = np.argsort((held_class.astype(np.int64) << _POSITION_BITS) + held_from)
    by_group = np.argsort(held_group, kind="stable")
    return Incidence(
        owner=owner,
        seen_edges=seen_edges,
        seen_class=seen_class,
        seen_upto=seen_upto,
        seen_group_edges=seen_group_edges,
        seen_group=seen_group,
        held_edges=_edges(held_class, len(index.class_root)),
        held_chunk=held_chunk[by_class],
        held_from=held_from[by_class],
        held_group_edges=_edges(held_group, len(index.group_root)),
        held_group_chunk=held_group_chunk[by_group],
    )

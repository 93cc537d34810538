"""Exact numbers of allowed (query, key) pairs: of the mask, of a rank's slice, and of the cells of a picture."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int32, Int64

from preshard.packer_service.layout.mask import NO_WINDOW, MaskIndex, run_at
from preshard.packer_service.numerics import compiled
from preshard.schemas.sequence import MaskArrays


class _ClassRuns(NamedTuple):
    """Values that decide how many keys the queries of each run see.

    Attributes:
        root_keys: keys of the root class before the run.
        later: keys of the run's own group class behind the run.
    """

    root_keys: Int64[np.ndarray, "runs"]
    later: Int64[np.ndarray, "runs"]


@compiled
def list_runs(index: MaskIndex) -> _ClassRuns:
    run_class, run_group, class_root = index.run_class, index.run_group, index.class_root
    before, later = np.zeros(len(class_root), np.int64), np.zeros(len(index.group_root), np.int64)
    found = _ClassRuns(np.zeros(len(run_class), np.int64), np.zeros(len(run_class), np.int64))
    for run in range(len(run_class)):
        if run_group[run] >= 0:
            later[run_group[run]] += index.run_edges[run + 1] - index.run_edges[run]
    for run in range(len(run_class)):
        c, group, length = run_class[run], run_group[run], index.run_edges[run + 1] - index.run_edges[run]
        if c < 0:
            continue
        if class_root[c] >= 0:
            found.root_keys[run] = before[class_root[c]]
        before[c] += length
        if group >= 0:
            later[group] -= length
            found.later[run] = later[group]
    return found


@compiled
def _sum_capped(first: np.int64, count: np.int64, cap: np.int64) -> np.int64:
    """Sum of ``count`` numbers that begin with ``first`` and grow by one, where below 0 as 0, above ``cap`` as it."""
    zeros = min(count, max(np.int64(0), -first))
    first, count = max(first, np.int64(0)), count - zeros
    rising = min(count, max(np.int64(0), cap - first))
    return rising * first + rising * (rising - 1) // 2 + (count - rising) * cap


@compiled
def _area_of(index: MaskIndex, runs: _ClassRuns, run: int, queries: np.int64) -> np.int64:
    """Allowed pairs of the first queries of a run."""
    c, group = index.run_class[run], index.run_group[run]
    if c < 0:
        return np.int64(0)
    place, window = index.run_place[run], np.int64(index.window)
    too_far = place - window + 1  # places of keys that the first query does not see, from 0 on
    area = _sum_capped(place - index.class_prefix[c] + 1, queries, window)
    area += queries * runs.root_keys[run] - _sum_capped(too_far, queries, runs.root_keys[run])
    if group < 0:
        return area
    behind = index.run_edges[run + 1] - index.run_edges[run] - 1  # the first query, in its own run
    area += queries * behind - queries * (queries - 1) // 2 + queries * runs.later[run]
    root = index.group_root[group]
    if root >= 0:
        for other in range(run + 1, len(index.run_group)):
            if index.run_group[other] == root:
                keys = index.run_edges[other + 1] - index.run_edges[other]
                area += queries * keys - _sum_capped(too_far - index.run_place[other], queries, keys)
    return area


@compiled
def _areas_before(index: MaskIndex) -> tuple[Int64[np.ndarray, "runs_plus_1"], _ClassRuns]:
    """Allowed pairs of all queries before each run, and what is known of the runs."""
    runs = list_runs(index)
    before = np.zeros(len(index.run_class) + 1, np.int64)
    for run in range(len(index.run_class)):
        length = index.run_edges[run + 1] - index.run_edges[run]
        before[run + 1] = before[run] + _area_of(index, runs, run, length)
    return before, runs


@compiled
def _add_areas(index: MaskIndex, runs: Int32[np.ndarray, "runs 3"], by_rank: Int64[np.ndarray, "ring"]) -> None:
    before, known = _areas_before(index)
    for row in range(len(runs)):
        start = np.int64(runs[row, 1])
        for position, sign in ((start, -1), (start + runs[row, 2], 1)):
            run = min(run_at(index, position), len(index.run_class) - 1)
            if run >= 0:
                area = before[run] + _area_of(index, known, run, position - index.run_edges[run])
                by_rank[runs[row, 0]] += sign * area


def attention_area(mask: MaskArrays | MaskIndex) -> int:
    """Number of allowed pairs of the whole mask."""
    return int(_areas_before(MaskIndex.of(mask))[0][-1])


def area_by_rank(
    mask: MaskArrays | MaskIndex, runs: Int32[np.ndarray, "runs 3"], ring_degree: int
) -> Int64[np.ndarray, "ring"]:
    """Allowed pairs of the queries in each ring rank's slice."""
    by_rank = np.zeros(ring_degree, np.int64)
    _add_areas(MaskIndex.of(mask), np.ascontiguousarray(runs, np.int32), by_rank)
    return by_rank


@compiled
def _pairs(
    index: MaskIndex,
    edges: Int64[np.ndarray, "pieces_plus_1"],
    run_of: Int64[np.ndarray, "pieces"],
    cell_of: Int64[np.ndarray, "pieces"],
    pairs: Int64[np.ndarray, "cells cells"],
) -> None:
    """Adds the allowed pairs of every two pieces to their cells. A piece has one class, one group and one cell."""
    for q in range(len(run_of)):
        own, group = index.run_class[run_of[q]], index.run_group[run_of[q]]
        if own < 0:
            continue
        root, group_root = index.class_root[own], np.int32(-1)
        if group >= 0:
            group_root = index.group_root[group]
        queries = edges[q + 1] - edges[q]
        for k in range(len(run_of)):
            other, other_group = index.run_class[run_of[k]], index.run_group[run_of[k]]
            if other < 0 or other not in (own, root):
                continue
            together = group >= 0 and other_group >= 0 and other_group in (group, group_root)
            if together or k < q:
                pairs[cell_of[q], cell_of[k]] += queries * (edges[k + 1] - edges[k])
            elif k == q:
                pairs[cell_of[q], cell_of[k]] += queries * (queries + 1) // 2


def allowed_pairs(index: MaskIndex, cell: int) -> Int64[np.ndarray, "cells cells"]:
    """Allowed pairs in cells of ``cell`` x ``cell`` tokens: rows are queries, columns keys, in natural order.

    The tokens are cut where the mask's runs and the cells end; time grows with the square of the pieces.
    """
    assert index.window == NO_WINDOW, "pictures are of the full mask"
    cells = -(-index.seq_len // cell)
    edges = np.unique(np.concatenate([index.run_edges, np.arange(cells) * cell, [index.seq_len]]))
    starts = edges[:-1]
    run_of = np.searchsorted(index.run_edges, starts, side="right") - 1
    pairs = np.zeros((cells, cells), np.int64)
    _pairs(index, edges, run_of, starts // cell, pairs)
    return pairs


def shares(index: MaskIndex, cell: int) -> Float64[np.ndarray, "cells cells"]:
    """Share of each cell's pairs that the mask allows, 0 to 1. A last cell that is cut short counts its own pairs."""
    pairs = allowed_pairs(index, cell)
    lengths = np.minimum(cell, index.seq_len - np.arange(len(pairs)) * cell)
    return pairs / np.outer(lengths, lengths)


def most_common(values: Int32[np.ndarray, "seq"], cell: int) -> Int64[np.ndarray, "cells"]:
    """The value of most tokens of each cell. The smallest of equally common ones."""
    found, kind = np.unique(values, return_inverse=True)  # however large the values are
    cells = -(-len(values) // cell)
    counts = np.bincount(np.arange(len(values)) // cell * len(found) + kind, minlength=cells * len(found))
    most: Int64[np.ndarray, "cells"] = found[counts.reshape(cells, -1).argmax(axis=1)].astype(np.int64)
    return most

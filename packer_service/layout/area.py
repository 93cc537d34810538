"""Exact numbers of allowed (query, key) pairs."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64

from preshard.packer_service.layout.mask import MaskIndex, run_at
from preshard.packer_service.numerics.compiled import compiled
from preshard.schemas.sequence import MaskArrays


@compiled
def _run_keys(index: MaskIndex) -> tuple[Int64[np.ndarray, "runs"], Int64[np.ndarray, "runs"]]:
    """Keys that each run's first query sees, and whether each further query of the run sees one more.

    A query outside any group sees one key more than the query before it. Inside a group both see the whole run.
    """
    run_edges, run_class, run_group = index.run_edges, index.run_class, index.run_group
    class_root, group_root = index.class_root, index.group_root
    runs = len(run_class)
    before, later = np.zeros(len(class_root), np.int64), np.zeros(len(group_root), np.int64)
    for run in range(runs):
        if run_group[run] >= 0:
            later[run_group[run]] += run_edges[run + 1] - run_edges[run]
    first, slope = np.zeros(runs, np.int64), np.zeros(runs, np.int64)
    for run in range(runs):
        c, group, length = run_class[run], run_group[run], run_edges[run + 1] - run_edges[run]
        if c < 0:
            continue
        seen = before[c]
        if class_root[c] >= 0:
            seen += before[class_root[c]]
        before[c] += length
        if group < 0:
            first[run], slope[run] = seen + 1, 1
            continue
        later[group] -= length
        seen += length + later[group]
        if group_root[group] >= 0:
            seen += later[group_root[group]]
        first[run] = seen
    return first, slope


@compiled
def _areas_before(index: MaskIndex) -> tuple[Int64[np.ndarray, "runs_plus_1"], np.ndarray, np.ndarray]:
    """Allowed pairs of all queries before each run, and what :func:`_run_keys` says of the runs."""
    first, slope = _run_keys(index)
    before = np.zeros(len(first) + 1, np.int64)
    for run in range(len(first)):
        length = index.run_edges[run + 1] - index.run_edges[run]
        before[run + 1] = before[run] + _area_of(length, first[run], slope[run])
    return before, first, slope


@compiled
def _area_of(queries: np.int64, first: np.int64, slope: np.int64) -> np.int64:
    """Allowed pairs of the first queries of a run."""
    return queries * first + slope * (queries * (queries - 1) // 2)


@compiled
def _add_areas(index: MaskIndex, runs: Int32[np.ndarray, "runs 3"], by_rank: Int64[np.ndarray, "ring"]) -> None:
    before, first, slope = _areas_before(index)
    for row in range(len(runs)):
        start = np.int64(runs[row, 1])
        for position, sign in ((start, -1), (start + runs[row, 2], 1)):
            run = min(run_at(index, position), len(first) - 1)
            if run >= 0:
                area = before[run] + _area_of(position - index.run_edges[run], first[run], slope[run])
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

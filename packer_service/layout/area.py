"""Exact numbers of allowed (query, key) pairs."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64

from packer_service.layout.mask import MaskIndex
from packer_service.numerics.compiled import compiled
from schemas.sequence import MaskArrays


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


def _area_before(index: MaskIndex, positions: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """Allowed pairs of all queries before each position."""
    if not len(index.run_class):
        return np.zeros(len(positions), np.int64)
    first, slope = _run_keys(index)
    lengths = np.diff(index.run_edges)
    whole = np.concatenate([[0], np.cumsum(lengths * first + slope * (lengths * (lengths - 1) // 2))])
    run = np.minimum(np.searchsorted(index.run_edges, positions, side="right") - 1, len(lengths) - 1)
    part = positions - index.run_edges[run]
    area: Int64[np.ndarray, "n"] = whole[run] + part * first[run] + slope[run] * (part * (part - 1) // 2)
    return area


def attention_area(mask: MaskArrays | MaskIndex) -> int:
    """Number of allowed pairs of the whole mask."""
    index = MaskIndex.of(mask)
    return int(_area_before(index, np.array([index.seq_len]))[0])


def area_by_rank(
    mask: MaskArrays | MaskIndex, runs: Int32[np.ndarray, "runs 3"], ring_degree: int
) -> Int64[np.ndarray, "ring"]:
    """Allowed pairs of the queries in each ring rank's slice."""
    index = MaskIndex.of(mask)
    starts = runs[:, 1].astype(np.int64)
    areas = _area_before(index, starts + runs[:, 2]) - _area_before(index, starts)
    by_rank = np.zeros(ring_degree, np.int64)
    np.add.at(by_rank, runs[:, 0], areas)
    return by_rank

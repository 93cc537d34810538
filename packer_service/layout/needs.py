"""Which keys the queries of each rank see."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int32, Int64

from packer_service.layout.incidence import Incidence, chunk_incidence
from packer_service.layout.mask import MaskIndex
from packer_service.layout.tiles import count_pairs, whole_run
from packer_service.numerics.compiled import compiled
from schemas.sequence import MaskArrays


def _slices(index: MaskIndex, runs: Int32[np.ndarray, "runs 3"]) -> Incidence:
    """The incidence of whole slices: one chunk per rank."""
    return chunk_incidence(index, runs, max(index.seq_len, 1))


def key_blocks_needed(
    mask: MaskArrays | MaskIndex, runs: Int32[np.ndarray, "runs 3"], ring_degree: int, block_size: int
) -> Bool[np.ndarray, "ring blocks"]:
    """Which blocks of ``block_size`` keys, in natural order, hold a key that some query of each rank sees.

    The last block may be shorter. Blocks that the rank holds itself count, too.
    """
    index = MaskIndex.of(mask)
    needed = np.zeros((ring_degree, -(-index.seq_len // block_size)), bool)
    if not index.seq_len:
        return needed
    rows, columns = _slices(index, runs), chunk_incidence(index, whole_run(index.seq_len), block_size)
    each = np.arange(len(columns.owner), dtype=np.int32)
    counted = count_pairs(rows, columns, rows.owner, each)
    needed[: len(counted)] = counted > 0
    return needed


@compiled
def _needed_keys(index: MaskIndex, rows: Incidence) -> Int64[np.ndarray, "chunks"]:
    """Keys that each chunk's queries see."""
    needed = np.zeros(len(rows.seen_edges) - 1, np.int64)
    for chunk in range(len(needed)):
        upto, whole = np.full(len(index.class_root), -1, np.int64), np.zeros(len(index.group_root), np.bool_)
        for entry in range(rows.seen_edges[chunk], rows.seen_edges[chunk + 1]):
            upto[rows.seen_class[entry]] = rows.seen_upto[entry]
        for entry in range(rows.seen_group_edges[chunk], rows.seen_group_edges[chunk + 1]):
            whole[rows.seen_group[entry]] = True
        for run in range(len(index.run_class)):
            c, start, stop = index.run_class[run], index.run_edges[run], index.run_edges[run + 1]
            if c < 0:
                continue
            if index.run_group[run] >= 0 and whole[index.run_group[run]]:
                needed[chunk] += stop - start
            elif upto[c] >= start:
                needed[chunk] += min(stop, upto[c] + 1) - start
    return needed


def real_before(index: MaskIndex, positions: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """Tokens that are not padding, before each position."""
    lengths = np.diff(index.run_edges) * (index.run_class >= 0)
    run = np.minimum(np.searchsorted(index.run_edges, positions, side="right") - 1, len(lengths) - 1)
    inside = (positions - index.run_edges[run]) * (index.run_class[run] >= 0)
    before: Int64[np.ndarray, "n"] = np.concatenate([[0], np.cumsum(lengths)])[run] + inside
    return before


def keys_fetched(
    mask: MaskArrays | MaskIndex, runs: Int32[np.ndarray, "runs 3"], ring_degree: int
) -> Int64[np.ndarray, "ring"]:
    """Keys, in tokens, that each rank's queries see and that the rank does not hold.

    Every token but padding sees itself, so what a rank holds of real tokens is always among what it needs.
    """
    index = MaskIndex.of(mask)
    fetched = np.zeros(ring_degree, np.int64)
    if not index.seq_len:
        return fetched
    rows = _slices(index, runs)
    fetched[rows.owner] += _needed_keys(index, rows)
    starts = runs[:, 1].astype(np.int64)
    np.subtract.at(fetched, runs[:, 0], real_before(index, starts + runs[:, 2]) - real_before(index, starts))
    return fetched

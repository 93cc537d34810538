"""Which keys the queries of each rank see."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64

from preshard.packer_service.layout.mask import MaskIndex, run_at
from preshard.packer_service.numerics.compiled import compiled
from preshard.schemas.sequence import MaskArrays


class _Seen(NamedTuple):
    """What the queries of each rank see: the keys of a class up to a position, -1 for none, and whole group classes.

    ``held`` counts the tokens of the rank that are not padding.
    """

    upto: Int64[np.ndarray, "ring classes"]
    groups: Bool[np.ndarray, "ring groups"]
    held: Int64[np.ndarray, "ring"]


@compiled
def _look(index: MaskIndex, runs: Int32[np.ndarray, "runs 3"], seen: _Seen) -> None:
    """Cuts the slices at the edges of mask runs, and notes what each piece sees."""
    for row in range(len(runs)):
        rank, at = runs[row, 0], np.int64(runs[row, 1])
        end, run = at + runs[row, 2], run_at(index, at)
        while at < end:
            stop = min(end, index.run_edges[run + 1])
            own, group = index.run_class[run], index.run_group[run]
            if own >= 0:
                root = index.class_root[own]
                seen.held[rank] += stop - at
                seen.upto[rank, own] = max(seen.upto[rank, own], stop - 1)
                if root >= 0:
                    seen.upto[rank, root] = max(seen.upto[rank, root], stop - 1)
            if group >= 0:
                root = index.group_root[group]
                seen.groups[rank, group] = True
                if root >= 0:
                    seen.groups[rank, root] = True
            at = stop
            run += 1


def _seen(index: MaskIndex, runs: Int32[np.ndarray, "runs 3"], ring_degree: int) -> _Seen:
    seen = _Seen(
        upto=np.full((ring_degree, len(index.class_root)), -1, np.int64),
        groups=np.zeros((ring_degree, len(index.group_root)), np.bool_),
        held=np.zeros(ring_degree, np.int64),
    )
    _look(index, np.ascontiguousarray(runs, np.int32), seen)
    return seen


@compiled
def _seen_of_run(index: MaskIndex, seen: _Seen, rank: int, run: int) -> np.int64:
    """Tokens of a run that a rank's queries see; they are its first."""
    own, group = index.run_class[run], index.run_group[run]
    start, stop = index.run_edges[run], index.run_edges[run + 1]
    if own < 0:
        return np.int64(0)
    if group >= 0 and seen.groups[rank, group]:
        return stop - start
    return max(np.int64(0), min(stop, seen.upto[rank, own] + 1) - start)


@compiled
def _mark_blocks(index: MaskIndex, seen: _Seen, block_size: int, needed: Bool[np.ndarray, "ring blocks"]) -> None:
    for rank in range(len(needed)):
        for run in range(len(index.run_class)):
            start = index.run_edges[run]
            tokens = _seen_of_run(index, seen, rank, run)
            if tokens > 0:
                for block in range(start // block_size, (start + tokens - 1) // block_size + 1):
                    needed[rank, block] = True


def key_blocks_needed(
    mask: MaskArrays | MaskIndex, runs: Int32[np.ndarray, "runs 3"], ring_degree: int, block_size: int
) -> Bool[np.ndarray, "ring blocks"]:
    """Which blocks of ``block_size`` keys, in natural order, hold a key that some query of each rank sees.

    The last block may be shorter. Blocks that the rank holds itself count, too.
    """
    index = MaskIndex.of(mask)
    needed = np.zeros((ring_degree, -(-index.seq_len // block_size)), np.bool_)
    _mark_blocks(index, _seen(index, runs, ring_degree), block_size, needed)
    return needed


@compiled
def _add_keys(index: MaskIndex, seen: _Seen, keys: Int64[np.ndarray, "ring"]) -> None:
    for rank in range(len(keys)):
        for run in range(len(index.run_class)):
            keys[rank] += _seen_of_run(index, seen, rank, run)


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
    seen = _seen(index, runs, ring_degree)
    fetched = -seen.held
    _add_keys(index, seen, fetched)
    return fetched

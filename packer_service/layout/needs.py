"""Keys that the queries of each rank see."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64

from preshard.packer_service.layout.area import list_runs
from preshard.packer_service.layout.mask import NO_WINDOW, MaskIndex, run_at
from preshard.packer_service.numerics import compiled
from preshard.schemas.sequence import MaskArrays


class _Seen(NamedTuple):
    """Keys seen by the queries of each rank: those of a class up to a position, -1 for none, and whole group classes.

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
    """Blocks of ``block_size`` keys, in natural order, that hold a key seen by some query, for each rank.

    The last block may be shorter. Blocks that the rank holds itself count, too.
    """
    index = MaskIndex.of(mask)
    needed = np.zeros((ring_degree, -(-index.seq_len // block_size)), np.bool_)
    if index.window < NO_WINDOW:
        _look_in_window(
            index, np.ascontiguousarray(runs, np.int32), block_size, needed, np.zeros(ring_degree, np.int64)
        )
        return needed
    _mark_blocks(index, _seen(index, runs, ring_degree), block_size, needed)
    return needed


@compiled
def _add_keys(index: MaskIndex, seen: _Seen, keys: Int64[np.ndarray, "ring"]) -> None:
    for rank in range(len(keys)):
        for run in range(len(index.run_class)):
            keys[rank] += _seen_of_run(index, seen, rank, run)


@compiled
def _look_in_window(
    index: MaskIndex,
    runs: Int32[np.ndarray, "runs 3"],
    block_size: int,
    needed: Bool[np.ndarray, "ring blocks"],
    fetched: Int64[np.ndarray, "ring"],
) -> None:
    """Marks the blocks that each rank's queries see under a window, and adds the keys that it sees and does not hold.

    A rank's queries leave holes in what they see of a class. So each token counts the stretches of keys around it: of
    ``starts``, in the order of classes, the sum up to a token says how many queries' stretches hold it.
    """
    known, window = list_runs(index), np.int64(index.window)
    class_first = np.zeros(len(index.class_root) + 1, np.int64)
    for run in range(len(index.run_class)):
        if index.run_class[run] >= 0:
            class_first[index.run_class[run] + 1] += index.run_edges[run + 1] - index.run_edges[run]
    for c in range(len(index.class_root)):
        class_first[c + 1] += class_first[c]
    starts, row = np.zeros(class_first[-1] + 1, np.int64), 0
    group_from = np.empty(len(index.group_root), np.int64)
    for rank in range(len(needed)):
        starts[:] = 0
        group_from[:] = NO_WINDOW
        while row < len(runs) and runs[row, 0] == rank:
            at = np.int64(runs[row, 1])
            end, run = at + runs[row, 2], run_at(index, at)
            while at < end:
                stop = min(end, index.run_edges[run + 1])
                own, group = index.run_class[run], index.run_group[run]
                first = index.run_place[run] + at - index.run_edges[run] - window + 1
                if own >= 0:
                    fetched[rank] -= stop - at
                    origin = class_first[own] - index.class_prefix[own]  # where place 0 of the class would be
                    starts[max(class_first[own], origin + first)] += 1
                    starts[origin + first + window - 1 + stop - at] -= 1
                    root = index.class_root[own]
                    if root >= 0 and first < known.root_keys[run]:
                        starts[class_first[root] + max(np.int64(0), first)] += 1
                        starts[class_first[root] + known.root_keys[run]] -= 1
                if group >= 0:
                    group_from[group] = min(group_from[group], first)
                    root = index.group_root[group]
                    if root >= 0:
                        group_from[root] = min(group_from[root], first)
                at = stop
                run += 1
            row += 1
        for token in range(class_first[-1]):
            starts[token + 1] += starts[token]
        for run in range(len(index.run_class)):
            own, group = index.run_class[run], index.run_group[run]
            if own < 0:
                continue
            place, token = index.run_place[run], index.run_edges[run]
            counted = class_first[own] - index.class_prefix[own] + place
            for ahead in range(index.run_edges[run + 1] - token):
                if starts[counted + ahead] > 0 or (group >= 0 and place + ahead >= group_from[group]):
                    needed[rank, (token + ahead) // block_size] = True
                    fetched[rank] += 1


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
    if index.window < NO_WINDOW:
        keys = np.zeros(ring_degree, np.int64)
        _look_in_window(
            index, np.ascontiguousarray(runs, np.int32), index.seq_len, np.zeros((ring_degree, 1), bool), keys
        )
        return keys
    seen = _seen(index, runs, ring_degree)
    fetched = -seen.held
    _add_keys(index, seen, fetched)
    return fetched

"""The attention mask as a matrix, and the blocks of keys that the queries of each rank see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32, Int64

from preshard.schemas.sequence import MaskArrays, list_places


def needed_blocks(
    mask: MaskArrays,
    runs: Int32[np.ndarray, "runs 3"],
    ring_degree: int,
    block_size: int,
    *,
    window: int | None = None,
) -> Bool[np.ndarray, "ring blocks"]:
    """Blocks of ``block_size`` keys, in natural order, that hold a key seen by some query, for each rank.

    The last block may be shorter. Blocks that the rank holds itself count, too.

    Args:
        mask: the pack's mask.
        runs: a layout that holds every token once.
        ring_degree: number of ring ranks.
        block_size: tokens of a block.
        window: of the mask, see :func:`preshard.schemas.mask.dense_mask`; None for the full mask.
    """
    blocks = -(-mask.seq_len // block_size)
    if window is not None:
        seen = _seen_in_window(mask, runs, ring_degree, window)
        tokens = np.zeros((ring_degree, blocks * block_size), np.bool_)
        tokens[:, : mask.seq_len] = seen
        in_window: Bool[np.ndarray, "ring blocks"] = np.any(tokens.reshape(ring_degree, blocks, block_size), axis=2)
        return in_window
    marks = np.zeros((ring_degree, blocks + 1), np.int32)
    ranges = _KeyRanges.of(mask)
    last = _last_seen(ranges, runs, ring_degree)
    rank, which = np.nonzero(last >= ranges.edges[:-1])
    np.add.at(marks, (rank, ranges.edges[which] // block_size), 1)
    np.add.at(marks, (rank, last[rank, which] // block_size + 1), -1)
    needed: Bool[np.ndarray, "ring blocks"] = np.cumsum(marks, axis=1)[:, :-1] > 0
    return needed


@dataclass(frozen=True, kw_only=True, slots=True)
class _KeyRanges:
    """A mask as ranges of tokens with equal document, branch and group: range i is ``edges[i]:edges[i + 1]``.

    ``own`` numbers the pairs of document and branch, and ``root`` is the same document's branch 0; ``own_group`` and
    ``root_group`` are those with a group beside them. -1 is padding, or a token without a group.
    """

    edges: Int64[np.ndarray, "ranges_plus_1"]
    own: Int64[np.ndarray, "ranges"]
    root: Int64[np.ndarray, "ranges"]
    own_group: Int64[np.ndarray, "ranges"]
    root_group: Int64[np.ndarray, "ranges"]

    @staticmethod
    def of(mask: MaskArrays) -> _KeyRanges:
        columns = (mask.doc_ids, mask.branch_ids, mask.group_ids)
        changes = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        heads = np.concatenate([[0], np.flatnonzero(changes) + 1]) if mask.seq_len else np.zeros(0, np.int64)
        doc, branch, group = (column[heads].astype(np.int64) for column in columns)
        own, root = _numbered(doc, branch, np.zeros_like(branch), there=doc >= 0)
        own_group, root_group = _numbered(group, own, root, there=(doc >= 0) & (group >= 0))
        edges = np.append(heads, mask.seq_len)
        return _KeyRanges(edges=edges, own=own, root=root, own_group=own_group, root_group=root_group)


def _numbered(
    shared: Int64[np.ndarray, "ranges"],
    first: Int64[np.ndarray, "ranges"],
    second: Int64[np.ndarray, "ranges"],
    *,
    there: Bool[np.ndarray, "ranges"],
) -> tuple[Int64[np.ndarray, "ranges"], Int64[np.ndarray, "ranges"]]:
    """Numbers from 0 for the pairs (shared, first) and (shared, second), equal for equal pairs; -1 where not there."""
    pairs = (np.concatenate([shared, shared]) << 32) + np.concatenate([first, second])
    numbers = np.unique(pairs, return_inverse=True)[1]
    return np.where(there, numbers[: len(shared)], -1), np.where(there, numbers[len(shared) :], -1)


def _last_seen(
    ranges: _KeyRanges, runs: Int32[np.ndarray, "runs 3"], ring_degree: int
) -> Int64[np.ndarray, "ring ranges"]:
    """The last key of each range of the mask that each rank sees; before the range's start where it sees none.

    A query sees its own branch and branch 0 of its document up to itself, and all of its group in these two. So a rank
    sees each of them up to the last query that may look there. The last column of both tables takes what is -1.
    """
    ends, rank, which = _pieces(ranges.edges, runs)
    upto = np.full((ring_degree, int(max(ranges.own.max(initial=-1), ranges.root.max(initial=-1))) + 2), -1, np.int64)
    groups = int(max(ranges.own_group.max(initial=-1), ranges.root_group.max(initial=-1)))
    whole = np.zeros((ring_degree, groups + 2), np.bool_)
    for seen, seen_group in ((ranges.own, ranges.own_group), (ranges.root, ranges.root_group)):
        np.maximum.at(upto, (rank, seen[which]), ends - 1)
        whole[rank, seen_group[which]] = True
    upto[:, -1], whole[:, -1] = -1, False
    last_keys = ranges.edges[1:] - 1
    last: Int64[np.ndarray, "ring ranges"] = np.where(
        whole[:, ranges.own_group], last_keys, np.minimum(upto[:, ranges.own], last_keys)
    )
    return last


def _seen_in_window(
    mask: MaskArrays, runs: Int32[np.ndarray, "runs 3"], ring_degree: int, window: int
) -> Bool[np.ndarray, "ring seq"]:
    """Keys that the queries of each rank see under a window.

    In ``order``, token after token of each branch, what consecutive queries see of a branch is one stretch. Each token
    counts the stretches around it. Of a group they see all from a place on.
    """
    ranges, places, tokens = _KeyRanges.of(mask), list_places(mask).astype(np.int64), np.arange(mask.seq_len)
    ends, rank, which = _pieces(ranges.edges, runs)
    starts = np.concatenate([[0], ends[:-1]])
    range_of = np.repeat(np.arange(len(ranges.own)), np.diff(ranges.edges))
    keys = (ranges.own[range_of] + 1) * mask.seq_len + tokens
    order = np.argsort(keys)
    by_order = keys[order]
    stretches = np.zeros((ring_degree, mask.seq_len + 1), np.int32)
    group_from = np.full((ring_degree, int(ranges.own_group.max(initial=-1)) + 2), np.iinfo(np.int64).max)
    for seen, seen_group in ((ranges.own, ranges.own_group), (ranges.root, ranges.root_group)):
        branch = seen[which]
        first = np.searchsorted(by_order, (branch + 1) * mask.seq_len)
        end = np.searchsorted(by_order, (branch + 1) * mask.seq_len + ends)
        origin = places[order[np.minimum(first, mask.seq_len - 1)]]  # the place of the branch's first token
        first += np.maximum(0, places[starts] - window + 1 - origin)
        sees = (branch >= 0) & (first < end)
        np.add.at(stretches, (rank[sees], first[sees]), 1)
        np.add.at(stretches, (rank[sees], end[sees]), -1)
        grouped = (seen_group[which] >= 0) & (seen_group[which] < group_from.shape[1] - 1)
        at = rank[grouped], seen_group[which][grouped]
        np.minimum.at(group_from, at, places[starts][grouped] - window + 1)
    found = np.zeros((ring_degree, mask.seq_len), np.bool_)
    found[:, order] = np.cumsum(stretches, axis=1)[:, :-1] > 0
    found |= places >= group_from[:, ranges.own_group[range_of]]  # the last column is that of no group
    return found


def _pieces(
    edges: Int64[np.ndarray, "ranges_plus_1"], runs: Int32[np.ndarray, "runs 3"]
) -> tuple[Int64[np.ndarray, "pieces"], Int32[np.ndarray, "pieces"], Int64[np.ndarray, "pieces"]]:
    """The sequence cut at the edges of ranges and of runs: each piece's end, its rank and its range."""
    by_start = runs[np.argsort(runs[:, 1], kind="stable")]
    cuts = np.union1d(edges, by_start[:, 1])
    of_run = np.searchsorted(by_start[:, 1], cuts[:-1], side="right") - 1
    return cuts[1:], by_start[of_run, 0], np.searchsorted(edges, cuts[:-1], side="right") - 1


def dense_mask(
    mask: MaskArrays,
    queries: np.ndarray | None = None,
    keys: np.ndarray | None = None,
    *,
    window: int | None = None,
) -> Bool[np.ndarray, "queries keys"]:
    """The mask as a matrix, for checks and for short sequences: memory grows with the product of the two sets.

    Args:
        mask: the mask's arrays.
        queries: natural positions of the rows; all positions by default.
        keys: natural positions of the columns; all positions by default.
        window: tokens that a layer with a sliding window sees, the query among them: a key is hidden from it unless
            ``place[q] - place[k] < window``, groups included (see :func:`list_places`). None for the full mask.
    """
    every = np.arange(mask.seq_len)
    q = every if queries is None else np.asarray(queries)
    k = every if keys is None else np.asarray(keys)
    doc_q, doc_k = mask.doc_ids[q][:, None], mask.doc_ids[k][None, :]
    branch_q, branch_k = mask.branch_ids[q][:, None], mask.branch_ids[k][None, :]
    group_q, group_k = mask.group_ids[q][:, None], mask.group_ids[k][None, :]
    same_doc = (doc_q == doc_k) & (doc_q >= 0)
    visible_branch = (branch_k == 0) | (branch_k == branch_q)
    ordered = (k[None, :] <= q[:, None]) | ((group_q == group_k) & (group_q >= 0))
    allowed = same_doc & visible_branch & ordered
    if window is not None:
        places = list_places(mask)
        allowed &= places[q][:, None] - places[k][None, :] < window
    return allowed

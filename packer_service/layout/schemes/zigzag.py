"""Zigzag over each document: the layout of ring attention with packed documents.

Each document is cut into ``2R`` equal chunks and rank r holds chunks r and ``2R - 1 - r``, so that the first, light
part of a causal triangle is paired with a heavy one (zhuzilin/ring-flash-attention, ``zigzag_ring_flash_attn_varlen``).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64

from packer_service.layout.runs import merge_adjacent
from schemas.errors import LayoutError


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
    return np.unique(np.concatenate([first, last, [0, seq_len]]))


def zigzag_runs(edges: Int64[np.ndarray, "segments_plus_1"], ring_degree: int) -> Int32[np.ndarray, "runs 3"]:
    """Rank r holds chunks r and ``2R - 1 - r`` of each segment, segment after segment.

    Raises:
        LayoutError: the length of a segment is not a multiple of ``2 * ring_degree``.
    """
    edges = np.asarray(edges, np.int64)
    lengths, parts = np.diff(edges), 2 * ring_degree
    if (wrong := np.flatnonzero(lengths % parts)).size:
        start, length = int(edges[wrong[0]]), int(lengths[wrong[0]])
        raise LayoutError(
            f"zigzag at ring degree {ring_degree}: the segment at token {start} has {length} tokens, not a multiple"
            f" of {parts}; align documents to 2 * the largest ring degree"
        )
    chunk = lengths // parts
    ranks = np.arange(ring_degree)[:, None, None]
    which = np.concatenate([ranks, parts - 1 - ranks], axis=2)  # ring, 1, 2
    start = edges[None, :-1, None] + which * chunk[None, :, None]  # ring, segments, 2
    rows = np.broadcast_arrays(ranks, start, chunk[None, :, None])
    return merge_adjacent(np.stack([row.reshape(-1) for row in rows], axis=1))

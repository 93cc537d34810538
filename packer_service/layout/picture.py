"""The mask as a picture of few cells, exact and without the matrix."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int32, Int64

from preshard.packer_service.layout.mask import NO_WINDOW, MaskIndex
from preshard.packer_service.numerics.compiled import compiled


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
    """The value of most tokens of each cell; values are at least -1. The smallest of equally common ones."""
    kinds = int(values.max(initial=-1)) + 2
    cells = -(-len(values) // cell)
    counts = np.bincount(np.arange(len(values)) // cell * kinds + values + 1, minlength=cells * kinds)
    most: Int64[np.ndarray, "cells"] = counts.reshape(cells, kinds).argmax(axis=1) - 1
    return most

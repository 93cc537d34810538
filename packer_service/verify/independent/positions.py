"""Positions as ``docs/format.md`` states them, walked through run by run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from jaxtyping import Int64

from preshard.schemas.manifest import Unit
from preshard.schemas.sequence import PackedSequence


def derive_positions(
    sequence: PackedSequence, units: Sequence[Unit], n_documents: int, *, axes: int, merge: int
) -> Int64[np.ndarray, "axes seq"]:
    """What ``position_ids`` must be, 0 in padding.

    Args:
        sequence: arrays with sound documents, branches and pooled rows.
        units: the pack's units.
        n_documents: documents of the pack.
        axes: 1, or 3 for time, height and width.
        merge: side of the square of patches that a row stands for.
    """
    expected = np.zeros((axes, sequence.seq_len), np.int64)
    unit_of = np.repeat(np.arange(len(units)), [unit.rows for unit in units])
    of_token = np.full(sequence.seq_len, -1)
    if axes > 1:
        filled = sequence.pool_ids >= 0
        of_token[filled] = unit_of[sequence.pool_ids[filled]]
    documents = np.split(np.arange(sequence.seq_len), np.flatnonzero(np.diff(sequence.doc_ids)) + 1)
    for tokens in documents:
        if not 0 <= sequence.doc_ids[tokens[0]] < n_documents:
            continue
        branch = sequence.branch_ids[tokens]
        prefix = tokens[branch == 0]
        for number in range(int(branch.max()) + 1):
            alone = np.concatenate([prefix, tokens[branch == number]]) if number else prefix
            expected[:, alone] = _walk(of_token[alone], units, axes, merge)
    return expected


def _walk(
    of_token: Int64[np.ndarray, "doc"], units: Sequence[Unit], axes: int, merge: int
) -> Int64[np.ndarray, "axes doc"]:
    """Positions of tokens that stand alone, by the unit whose row fills each."""
    if axes == 1:
        return np.arange(len(of_token))[None]
    parts, following = [np.zeros((3, 0), np.int64)], 0
    of_medium = [-1 if unit < 0 else units[unit].medium for unit in of_token.tolist()]
    at = 0
    for medium, run in groupby(of_medium):
        length = len(list(run))
        if medium < 0:
            parts.append(np.tile(np.arange(following, following + length), (3, 1)))
            following += length
        else:
            block = [units[number] for number in dict.fromkeys(of_token[at : at + length].tolist())]
            parts.append(following + _block(block, merge))
            following += max(block[0].grid[1:]) // merge
        at += length
    return np.concatenate(parts, axis=1)


def _block(block: Sequence[Unit], merge: int) -> Int64[np.ndarray, "3 rows"]:
    """Time, height and width of the rows of units that follow each other, from 0."""
    slices = [(unit.grid[1] // merge, unit.grid[2] // merge) for unit in block for _ in range(unit.grid[0])]
    step = np.float32(block[0].time_step)
    rows = [
        [int(np.float32(time) * step), height, width]
        for time, (tall, wide) in enumerate(slices)
        for height in range(tall)
        for width in range(wide)
    ]
    return np.array(rows, np.int64).T

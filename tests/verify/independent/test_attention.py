"""Loads and needs of random masks and layouts against the whole matrix, token by token."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.verify.independent import attention
from preshard.packer_service.verify.independent.attention import layout_loads, whole_mask
from preshard.schemas.layout import TILE
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays

RUN = st.tuples(st.integers(1, 90), st.integers(-1, 2), st.integers(0, 2), st.integers(-1, 2))


@st.composite
def cases(draw: st.DrawFn) -> tuple[MaskArrays, np.ndarray, int]:
    """A mask of runs of random document, branch and group, and a layout of random pieces over 1, 2 or 4 ranks."""
    degree, piece = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([5, 32, 100]))
    seq_len = degree * piece * draw(st.integers(1, 600 // degree // piece))
    rows = np.array([run[1:] for run in draw(st.lists(RUN, min_size=1, max_size=30)) for _ in range(run[0])], np.int32)
    doc, branch, group = (np.ascontiguousarray(column) for column in np.resize(rows, (seq_len, 3)).T)
    order = np.array(draw(st.permutations(range(seq_len // piece)))) * piece
    ranks = np.arange(len(order)) * degree // len(order)
    runs = np.stack([ranks, order, np.full(len(order), piece)], axis=1).astype(np.int32)
    return MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=group), runs, degree


def tiles_of(allowed: np.ndarray) -> int:
    starts = [range(0, n, TILE) for n in allowed.shape]
    return sum(bool(allowed[i : i + TILE, j : j + TILE].any()) for i in starts[0] for j in starts[1])


@pytest.mark.parametrize("most_pieces", [1, attention.MOST_PIECES])
@settings(deadline=None, max_examples=30)
@given(case=cases(), window=st.sampled_from([None, None, 1, 7, 60, 200]))
def test_loads_are_those_of_the_whole_matrix(
    case: tuple[MaskArrays, np.ndarray, int], window: int | None, most_pieces: int
) -> None:
    """Fails when a tile is counted twice or across slices, a triangle as a square, or a held key as fetched; under a
    window, when a key of an annotation's prefix or a later key of a group is out of reach.
    """
    mask, runs, degree = case
    dense = partial(dense_mask, mask, window=window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "MOST_PIECES", most_pieces)
        loads = layout_loads(mask, runs, degree, 50, window)
        assert whole_mask(mask, window) == (dense().sum(), tiles_of(dense()))
    held = [
        np.concatenate([np.arange(at, at + n) for rank, at, n in runs.tolist() if rank == r]) for r in range(degree)
    ]
    tiles = [[tiles_of(dense(held[r], held[s])) for s in range(degree)] for r in range(degree)]
    for rank in range(degree):
        allowed = dense(held[rank])
        needed = allowed.any(axis=0)
        assert loads.attention[rank] == allowed.sum()
        assert loads.tiles[rank] == sum(tiles[rank])
        assert loads.keys_fetched[rank] == np.setdiff1d(np.flatnonzero(needed), held[rank]).size
        assert loads.needs[rank].tolist() == [needed[at : at + 50].any() for at in range(0, mask.seq_len, 50)]
        assert loads.ring_steps[rank] == max(tiles[r][(r - rank) % degree] for r in range(degree))


def test_a_million_tokens_fit_in_bounded_memory() -> None:
    """Fails when time or memory grows with the square of the tokens: the matrix would have 2**40 entries."""
    n = 1 << 20
    doc = (np.arange(n) // 4096).astype(np.int32)
    mask = MaskArrays(doc_ids=doc, branch_ids=np.zeros(n, np.int32), group_ids=np.full(n, -1, np.int32))
    tiles = 4096 // TILE
    assert whole_mask(mask) == (n // 4096 * (4096 * 4097 // 2), n // 4096 * (tiles * (tiles + 1) // 2))

"""Random masks of every shape that the rule allows, and brute force on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import strategies as st

from preshard.schemas.layout import slice_positions
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays


def _mask(seed: int, n_runs: int, seq_len: int, *, sort: bool) -> MaskArrays:
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.integers(-1, 3, n_runs), rng.integers(0, 3, n_runs), rng.integers(-1, 3, n_runs)], axis=1)
    rows = np.resize(np.repeat(ids, rng.integers(1, 10, n_runs), axis=0), (seq_len, 3)).astype(np.int32)
    if sort:
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
    doc, branch, group = (np.ascontiguousarray(column, np.int32) for column in rows.T)
    return MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=group)


@pytest.fixture(scope="session")
def masks() -> Callable[..., st.SearchStrategy[MaskArrays]]:
    """``masks(seq_lens)``: masks of runs of random document (-1 is padding), branch and group.

    Half of them have each document in one piece and padding first; in the others documents, branches and groups are
    scattered over many runs. Ids are drawn from so few values that branches and documents share group ids. They are
    drawn by a seed, since Hypothesis would take longer to choose each number than the tests take.
    """

    def strategy(seq_lens: list[int]) -> st.SearchStrategy[MaskArrays]:
        return st.builds(
            lambda seed, n_runs, seq_len, sort: _mask(seed, n_runs, seq_len, sort=sort),
            st.integers(0, 2**32 - 1),
            st.integers(1, 40),
            st.sampled_from(seq_lens),
            st.booleans(),
        )

    return strategy


@pytest.fixture(scope="session", params=[[None], [1, 2, 3, 5, 9, 17, 40, 200]], ids=["full", "window"])
def windows(request: pytest.FixtureRequest) -> list[int | None]:
    """Windows from which those of a mask are drawn: none, or some; each kind has all examples of a test."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def slicings(masks, random_runs) -> Callable[[int], st.SearchStrategy[tuple[MaskArrays, np.ndarray]]]:
    """``slicings(ring_degree)``: a mask and a layout of random pieces for it."""

    def strategy(ring_degree: int) -> st.SearchStrategy[tuple[MaskArrays, np.ndarray]]:
        return st.builds(
            lambda mask, seed: (mask, random_runs(mask.seq_len, ring_degree, seed)),
            masks([8, 48, 96]),
            st.integers(0, 2**16),
        )

    return strategy


@pytest.fixture(scope="session")
def brute_tiles() -> Callable[..., np.ndarray]:
    """``brute_tiles(mask, runs, ring_degree, tile, window)`` from the dense mask."""

    def count(mask: MaskArrays, runs: np.ndarray, ring_degree: int, tile: int, window: int | None = None) -> np.ndarray:
        slices = [slice_positions(runs, rank) for rank in range(ring_degree)]
        tiles = np.zeros((ring_degree, ring_degree), np.int64)
        for r, rows in enumerate(slices):
            for s, columns in enumerate(slices):
                allowed = dense_mask(mask, rows, columns, window=window)
                by_row = np.logical_or.reduceat(allowed, np.arange(0, len(rows), tile), axis=0)
                tiles[r, s] = np.logical_or.reduceat(by_row, np.arange(0, len(columns), tile), axis=1).sum()
        return tiles

    return count


@pytest.fixture(scope="session")
def random_runs() -> Callable[[int, int, int], np.ndarray]:
    """``random_runs(seq_len, ring_degree, seed)``: equal slices of random pieces, in random order inside a slice."""

    def build(seq_len: int, ring_degree: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        piece = int(rng.choice([p for p in range(1, seq_len // ring_degree + 1) if seq_len // ring_degree % p == 0]))
        starts = rng.permutation(seq_len // piece) * piece
        ranks = np.repeat(np.arange(ring_degree), len(starts) // ring_degree)
        return np.stack([ranks, starts, np.full(len(starts), piece)], axis=1).astype(np.int32)

    return build

"""The balanced schemes: partitions, paths as promised, and never worse than the usual layouts."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.layout.blocks import WeighedMap, block_map
from preshard.packer_service.layout.deals import consecutive, head_tail, longest_first, round_robin, round_to_blocks
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import ring_step_maxima
from preshard.packer_service.layout.needs import keys_fetched
from preshard.packer_service.layout.schemes import balanced_ring
from preshard.packer_service.layout.schemes.balanced_gather import gather_owners
from preshard.packer_service.layout.schemes.balanced_ring import ring_owners
from preshard.packer_service.layout.solve import runs_from_owners
from preshard.packer_service.layout.tiles import tiles_by_rank
from preshard.schemas.schemes import zigzag_runs
from preshard.schemas.sequence import MaskArrays

TILE = 8


def paths(mask: MaskArrays, owners: np.ndarray, degree: int) -> tuple[int, int]:
    """Gather and ring path, by the exact measure and not by the search's own account."""
    tiles = tiles_by_rank(mask, runs_from_owners(owners, TILE), degree, tile=TILE)
    return int(tiles.sum(axis=1).max()), int(ring_step_maxima(tiles).sum())


def documents(lengths: list[int], seq_len: int) -> MaskArrays:
    doc = np.full(seq_len, -1, np.int32)
    doc[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    zero = np.zeros(seq_len, np.int32)
    return MaskArrays(doc_ids=doc, branch_ids=zero, group_ids=zero - 1)


def mapped(mask: MaskArrays) -> list[WeighedMap]:
    return [WeighedMap(block_map(MaskIndex.of(mask), TILE, tile=TILE), 1)]


@pytest.mark.parametrize("deal", [round_robin, consecutive, head_tail])
@pytest.mark.parametrize("each", [1, 2, 3, 4])
def test_deals_give_each_rank_as_many_blocks(deal, each):
    # Fails when an odd number of blocks per rank makes head-tail's ranges overlap.
    for degree in (1, 2, 3, 8):
        assert np.bincount(deal(each * degree, degree), minlength=degree).tolist() == [each] * degree


def test_longest_first_and_rounding_written_out():
    # Fails when LPT ignores the room of a rank, or when rounding leaves ranks with unequal numbers of blocks.
    assert longest_first(np.array([5, 1, 1, 1]), 2).tolist() == [0, 1, 1, 0]
    runs = zigzag_runs(np.array([0, 12, 32]), 2)
    owners = round_to_blocks(runs, 4, np.arange(8), 2)
    assert np.bincount(owners).tolist() == [4, 4]
    assert round_to_blocks(zigzag_runs(np.array([0, 32]), 2), 4, np.ones(8, int), 2).tolist() == [
        0,
        0,
        1,
        1,
        1,
        1,
        0,
        0,
    ]
    assert np.bincount(round_to_blocks(np.array([[0, 0, 31], [1, 31, 1]]), 4, np.arange(8), 2)).tolist() == [4, 4]


@settings(max_examples=40)
@given(data=st.data(), degree=st.sampled_from([1, 2, 3, 4, 8]))
def test_whole_blocks_and_never_worse_than_head_tail(masks, data, degree):
    # Fails when the search's account of tiles drifts from the true one: then what it holds for better is not.
    each = data.draw(st.sampled_from([2, 4]))
    mask = data.draw(masks([each * degree * TILE]))
    blocks = mapped(mask)
    tried = [head_tail(each * degree, degree), round_robin(each * degree, degree)]
    ring, gather = ring_owners(blocks, degree, rivals=tried, tries=2000), gather_owners(blocks, degree, tries=2000)
    for owners in (ring, gather):
        assert np.bincount(owners, minlength=degree).tolist() == [each] * degree
    assert paths(mask, ring, degree)[1] <= min(paths(mask, t, degree)[1] for t in tried)
    usual = paths(mask, tried[0], degree)[0]
    limited = gather_owners(blocks, degree, tries=2000, at_most=usual)
    assert paths(mask, limited, degree)[0] <= usual


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8))
@settings(max_examples=30)
def test_optimal_on_six_blocks_and_two_ranks(lengths):
    # Fails when exchanges are refused that lead to the optimum: all 20 deals of six blocks are tried beside it.
    lengths = [length for at, length in enumerate(lengths) if sum(lengths[: at + 1]) <= 48]
    mask = documents(lengths, 48)
    every = {tuple(deal) for deal in permutations([0, 0, 0, 1, 1, 1])}
    tried = [(*paths(mask, np.array(deal, np.int32), 2), deal) for deal in every]
    blocks = mapped(mask)
    assert paths(mask, ring_owners(blocks, 2), 2)[1] == min(ring for _, ring, _ in tried)
    assert paths(mask, gather_owners(blocks, 2), 2)[0] == min(gather for gather, _, _ in tried)


def test_the_search_ends_once_its_path_is_no_longer_than_asked(monkeypatch):
    # Fails when it starts again although other layouts are no better: each start costs as much as the first.
    mask, starts, search = documents([5, 90, 33, 60, 7, 41, 20], 32 * TILE), [], balanced_ring._search
    monkeypatch.setattr(balanced_ring, "_search", lambda *given: starts.append(given) or search(*given))
    path = paths(mask, ring_owners(mapped(mask), 4, tries=40), 4)[1]
    assert len(starts) == 1
    for at_most, wanted in ((path + 1000, 1), (path, 1), (0, 5)):
        starts.clear()
        ring_owners(mapped(mask), 4, tries=40, at_most=at_most)
        assert len(starts) == wanted, at_most


def test_one_long_document_has_the_floor_as_its_path():
    # Fails when head-tail, which is exact here, is not a candidate.
    mask = documents([64 * TILE], 64 * TILE)
    total = 64 * 65 // 2
    for degree in (2, 4, 8):
        assert paths(mask, gather_owners(mapped(mask), degree), degree)[0] <= total / degree * 65 / 64
        exact = gather_owners(mapped(mask), degree, at_most=total // degree)
        assert paths(mask, exact, degree)[0] == total // degree
        rival = head_tail(64, degree)
        assert paths(mask, ring_owners(mapped(mask), degree, rivals=[rival]), degree)[1] == total // degree


def test_short_documents_are_not_spread_when_keys_are_gathered():
    # Fails when the search balances tiles and forgets the keys: 32 documents of two blocks need not move any.
    mask = documents([2 * TILE] * 32, 64 * TILE)
    owners = gather_owners(mapped(mask), 4)
    assert keys_fetched(mask, runs_from_owners(owners, TILE), 4).sum() <= 8 * TILE
    dealt = runs_from_owners(round_robin(64, 4), TILE)
    assert keys_fetched(mask, dealt, 4).sum() == 32 * TILE


def test_whole_documents_change_ranks():
    # Fails when blocks are not merged: one by one they do not cross over, since halfway both ranks need the keys.
    mask = documents([20 * TILE] * 8 + [12 * TILE] * 8, 256 * TILE)
    assert keys_fetched(mask, runs_from_owners(gather_owners(mapped(mask), 8), TILE), 8).sum() == 0


def test_no_rank_fetches_far_more_than_others():
    # Fails when only the sum of all keys counts: a step waits for the rank that fetches most (78 blocks instead of 67).
    most = 0
    for seed in range(6):
        rng, parts = np.random.default_rng(seed), list[np.ndarray]()
        while sum(map(len, parts)) < 288:  # a prefix of -1, and annotations of a block each
            parts.append(np.r_[np.full(rng.integers(2, 12), -1), np.arange(rng.integers(0, 20))])
        doc = np.repeat(np.arange(len(parts)), [len(part) for part in parts])[:288].repeat(TILE).astype(np.int32)
        branch = (np.concatenate(parts)[:288] + 1).repeat(TILE).astype(np.int32)
        mask = MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=np.full(288 * TILE, -1, np.int32))
        most += keys_fetched(mask, runs_from_owners(gather_owners(mapped(mask), 8), TILE), 8).max() // TILE
    assert most <= 72


def test_a_mask_of_squares_is_balanced_too():
    # Fails when the keys weigh more than the tiles: in an image group every block sees the whole document.
    doc = np.repeat([0, 1, -1], [40 * TILE, 12 * TILE, 12 * TILE]).astype(np.int32)
    mask = MaskArrays(doc_ids=doc, branch_ids=np.zeros_like(doc), group_ids=np.zeros_like(doc))
    blocks = mapped(mask)
    path = paths(mask, gather_owners(blocks, 8), 8)[0]
    assert path <= 5 * 40 + 2 * 12


def test_padding_alone():
    # Fails on a division by the number of tiles, which is none.
    mask = documents([], 16 * TILE)
    for owners in (ring_owners(mapped(mask), 4), gather_owners(mapped(mask), 4)):
        assert np.bincount(owners).tolist() == [4] * 4

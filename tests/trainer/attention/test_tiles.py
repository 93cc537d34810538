"""The lists of tiles, against the dense matrix."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.schemas import layout
from preshard.schemas.layout import table_bytes, table_tile
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention import tiles as tiles_of
from preshard.trainer.attention.kernels.flex import block_mask
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.tiles import Tiles, count_occupied, list_for, list_tiles


def both_as_matrices(tiles: Tiles) -> tuple[np.ndarray, np.ndarray]:
    """Tiles that are listed, and those of them that are full."""
    listed = np.zeros((-(-len(tiles.queries) // tiles.q_tile), -(-len(tiles.keys) // tiles.k_tile)), bool)
    full = np.zeros_like(listed)
    for row, n_full in enumerate(tiles.n_full):
        columns = tiles.columns[tiles.edges[row] : tiles.edges[row + 1]]
        assert len(np.unique(columns)) == len(columns)
        listed[row, columns] = True
        full[row, columns[:n_full]] = True
    return listed, full


def by_brute_force(
    mask: MaskArrays, queries: np.ndarray, keys: np.ndarray, q_tile: int, k_tile: int, window: int | None
) -> Any:
    """Tiles that hold an allowed pair, and those that hold nothing else, leaving out short last ones."""
    allowed = dense_mask(mask, queries, keys, window=window)
    short = (-len(queries) % q_tile, -len(keys) % k_tile)
    padded = np.pad(allowed, ((0, short[0]), (0, short[1])))  # with pairs that are not allowed
    tiled = padded.reshape(padded.shape[0] // q_tile, q_tile, padded.shape[1] // k_tile, k_tile)
    some, every = tiled.any(axis=(1, 3)), tiled.all(axis=(1, 3))
    return some, every


@pytest.mark.parametrize("window", [None, 1, 6, 40])
def test_listed_tiles_are_those_of_the_matrix(packs: Any, window: int | None) -> None:
    # One tile too few is silently a wrong result; one too many is wasted time.
    met: dict[str, int] = {"skipped": 0, "full": 0, "partial": 0, "empty": 0}

    @settings(max_examples=60 if window is None else 40, deadline=None, derandomize=True, database=None)
    @given(packs(1, 4), st.integers(0, 2**16), st.sampled_from([1, 3, 8, 64]), st.sampled_from([1, 2, 5, 16]))
    def check(pack: Any, seed: int, q_tile: int, k_tile: int) -> None:
        mask, rng = pack[0], np.random.default_rng(seed)
        pieces = np.array_split(np.arange(mask.seq_len), max(1, mask.seq_len // int(rng.integers(1, 40))))
        chosen = [np.concatenate([pieces[i] for i in rng.permutation(len(pieces))[:n]]) for n in rng.integers(1, 9, 2)]
        tensors = MaskTensors.from_arrays(mask).within(window)
        tiles = list_tiles(tensors.at(chosen[0]), tensors.at(chosen[1]), q_tile=q_tile, k_tile=k_tile)
        listed, full = both_as_matrices(tiles)
        some, every = by_brute_force(mask, *chosen, q_tile, k_tile, window)
        np.testing.assert_array_equal(listed, some)
        assert not (full & ~every).any()
        assert tiles.empty == (not some.any())
        for name, found in (("skipped", ~some), ("full", full), ("partial", some & ~full), ("empty", not some.any())):
            met[name] += int(np.sum(found))

    check()
    assert all(met.values()), met


def test_whole_documents_are_listed_as_full() -> None:
    # A full tile that is not recognised costs the time of its mask.
    seq_len, tile = 1024, 64
    zero = np.zeros(seq_len, np.int32)
    tokens = MaskTensors.from_arrays(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1)).at(
        np.arange(seq_len)
    )
    _, full = both_as_matrices(list_tiles(tokens, tokens, q_tile=tile, k_tile=tile))
    np.testing.assert_array_equal(full, np.tri(seq_len // tile, k=-1, dtype=bool))
    tokens = MaskTensors.from_arrays(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero)).at(np.arange(seq_len))
    _, full = both_as_matrices(list_tiles(tokens, tokens, q_tile=tile, k_tile=tile))
    assert full.all()


@pytest.mark.parametrize("window", [None, 40])
def test_tiles_are_as_coarse_as_their_tables_are_large(
    packs: Any, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In tiles of 128 the tables of 15 million tokens would take 220 GB of a GPU. Coarse tiles that are not needed cost
    # time, and tiles that are counted in another size are another load.
    most = 600
    for module in (layout, tiles_of):
        monkeypatch.setattr(module, "MOST_TABLES", most)
        monkeypatch.setattr(module, "TILE", 4)
    met = {"coarse": 0, "coarse by length alone": 0, "fine": 0}

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(packs(1, 4), st.integers(0, 2**16))
    def check(pack: Any, seed: int) -> None:
        whole, rng = MaskTensors.from_arrays(pack[0]).within(window), np.random.default_rng(seed)
        some = np.sort(rng.permutation(len(whole))[: rng.integers(1, len(whole) + 1)])
        sets = whole.at(some), whole.at(np.arange(len(whole)))
        found, by_length = list_for("cuda", *sets), table_tile(*map(len, sets))
        made = block_mask(found)
        tables = [made.kv_indices, made.full_kv_indices, made.q_indices, made.full_q_indices]
        assert sum(4 * table.numel() for table in tables if table is not None) <= found.tables <= most
        assert 4 <= found.q_tile == found.k_tile <= by_length
        assert table_bytes(*map(len, sets)) <= most
        if by_length > 4:
            assert table_bytes(*map(len, sets), by_length // 2) > most
        assert count_occupied(*sets) == len(list_tiles(*sets, q_tile=4, k_tile=4).columns)
        met["coarse"] += found.q_tile > 4
        met["coarse by length alone"] += found.q_tile < by_length
        met["fine"] += by_length == 4

    check()
    assert all(met.values()), met


def test_a_million_tokens_have_the_finest_tiles() -> None:
    # Coarser ones would change the kernels and the loads of packs that fit without; finer ones would not fit.
    sides = {1_048_576: 128, 1_048_577: 256, 3_700_736: 512, 15_003_648: 2048}
    assert {tokens: table_tile(tokens, tokens) for tokens in sides} == sides
    assert table_tile(131_072, 1_048_576) == 128


def test_no_queries_or_keys() -> None:
    # A rank that needs no key at all has an empty list and no error.
    zero = np.zeros(4, np.int32)
    tensors = MaskTensors.from_arrays(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero))
    every, none = tensors.at(np.arange(4)), tensors.at(np.arange(0))
    for queries, keys in ((every, none), (none, every), (none, none)):
        assert list_tiles(queries, keys, q_tile=2, k_tile=2).empty


@pytest.mark.parametrize("document", [512, 1 << 17])
def test_memory_follows_the_occupied_tiles(document: int) -> None:
    # A matrix of 131,072 x 131,072 pairs would be 17 GB.
    seq_len = 1 << 17
    zero = np.zeros(seq_len, np.int32)
    doc = (np.arange(seq_len) // document).astype(np.int32)
    tokens = MaskTensors.from_arrays(MaskArrays(doc_ids=doc, branch_ids=zero, group_ids=zero - 1)).at(
        np.arange(seq_len)
    )
    tracemalloc.start()
    tiles = list_tiles(tokens, tokens, q_tile=128, k_tile=128)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    per_document = document // 128
    assert len(tiles.columns) == seq_len // document * per_document * (per_document + 1) // 2
    assert peak < 200 * seq_len + 120 * len(tiles.columns)

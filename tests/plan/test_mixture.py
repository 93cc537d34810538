"""How often documents are taken, and that copies and epochs have other neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.plan.cost import CostModel, causal_area
from preshard.packer_service.plan.make import Plan, make_plan
from preshard.packer_service.plan.mixture import check_mixture, count_copies, take
from preshard.packer_service.plan.pack import pack_documents
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.dataset.document_ids import mix64
from preshard.schemas.errors import ConfigError

HASHES = mix64(np.arange(40_000, dtype=np.uint64))


def test_a_weight_takes_its_share_of_the_documents() -> None:
    """Fails when a fraction takes another share, a whole number draws, or 0 leaves one in."""
    for weight in (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 7.9):
        copies = count_copies(HASHES, np.full(len(HASHES), weight), 3)
        assert set(copies) <= {int(weight), int(np.ceil(weight))}
        assert abs(copies.mean() - weight) < 0.01


@settings(deadline=None, max_examples=30)
@given(weight=st.floats(0, 1), more=st.floats(0, 1), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_what_is_taken_depends_on_the_document_alone(
    weight: float, more: float, seed: int, data: st.DataObject
) -> None:
    """Fails when other documents or their order decide, or a larger weight drops what a smaller one takes."""
    some = np.array(data.draw(st.permutations(range(20))))[: data.draw(st.integers(1, 20))]
    all_of_them = count_copies(HASHES[:20], np.full(20, weight), seed)
    assert count_copies(HASHES[some], np.full(len(some), weight), seed).tolist() == all_of_them[some].tolist()
    assert (count_copies(HASHES[:20], np.full(20, max(weight, more)), seed) >= all_of_them).all()


def test_seeds_take_other_documents() -> None:
    """Fails when every job leaves out the same half."""
    halves = [count_copies(HASHES, np.full(len(HASHES), 0.5), seed) for seed in (0, 1)]
    assert 0.23 < (halves[0] & halves[1]).mean() < 0.27


@settings(deadline=None, max_examples=60)
@given(copies=st.lists(st.integers(0, 5), min_size=1, max_size=30), epochs=st.integers(1, 3), seed=st.integers(0, 9))
def test_every_copy_is_in_a_pass_of_its_own(copies: list[int], epochs: int, seed: int) -> None:
    """Fails when a copy is lost, counted twice, or in one pass with another."""
    given_copies = np.array(copies)
    taken = take(HASHES[: len(copies)], given_copies, epochs=epochs, seed=seed)
    places = list(zip(taken.document, taken.copy_number, taken.epoch, strict=True))
    expected = [(d, c, e) for e in range(epochs) for d, n in enumerate(copies) for c in range(n)]
    assert sorted(places) == sorted(expected)
    assert len(set(zip(taken.document, taken.pass_number, strict=True))) == len(places)
    assert (np.diff(taken.pass_number) >= 0).all()
    assert (np.diff(taken.epoch) >= 0).all()


def plan_of_copies(copies: np.ndarray, tokens: np.ndarray, epochs: int, window: int = 4) -> tuple[Plan, np.ndarray]:
    taken = take(HASHES[: len(copies)], copies, epochs=epochs, seed=0)
    plan = make_plan(
        tokens=tokens[taken.document],
        images=np.zeros(len(taken.document), np.int64),
        areas=causal_area(tokens[taken.document]),
        seq_len=64,
        max_images=5,
        alignment=1,
        window=window,
        seed=0,
        cost_model=CostModel.of(PackConfig()),
        passes=taken.pass_number,
        epochs=taken.epoch,
    )
    return plan, taken.document


@settings(deadline=None, max_examples=60)
@given(
    documents=st.lists(st.tuples(st.integers(1, 64), st.integers(0, 4)), min_size=1, max_size=40),
    epochs=st.integers(1, 3),
)
def test_copies_of_a_document_never_share_a_pack(documents: list[tuple[int, int]], epochs: int) -> None:
    """Fails when two copies, of one epoch or of two, meet in a pack, or one of them is not planned."""
    tokens, copies = (np.array(column) for column in zip(*documents, strict=True))
    plan, document = plan_of_copies(copies, tokens, epochs)
    assert plan.n_documents == copies.sum() * epochs
    for pack in range(plan.n_packs):
        inside = document[plan.document[plan.rows(pack)]]
        assert len(set(inside)) == len(inside)


def test_an_epoch_comes_after_the_one_before_it() -> None:
    """Fails when epochs are mixed, but for what fills no whole window of an epoch."""
    tokens = 1 + np.arange(300) % 50
    plan, _ = plan_of_copies(np.ones(300, np.int64), tokens, epochs=3)
    assert plan.n_packs % 3 == 0
    taken = take(HASHES[:300], np.ones(300, np.int64), epochs=3, seed=0)
    of_packs = taken.epoch[plan.document[plan.pack_edges[:-1]]]
    grouped = plan.n_packs // 3 // 4 * 4
    assert of_packs[: 3 * grouped].tolist() == np.repeat([0, 1, 2], grouped).tolist()


def pairs(packs: np.ndarray) -> set[tuple[int, int]]:
    """Documents that share a pack."""
    together = (np.flatnonzero(packs == pack).tolist() for pack in np.unique(packs))
    return {(a, b) for rows in together for i, a in enumerate(rows) for b in rows[i + 1 :]}


def test_epochs_have_other_neighbours_for_no_more_packs() -> None:
    """Fails when packing by size puts the same documents together in every epoch, or pays for others with packs."""
    tokens = 20 + mix64(np.arange(2000, dtype=np.uint64)).astype(np.int64) % 900
    zeros = np.zeros(2000, np.int64)
    found = [pack_documents(tokens, zeros, seq_len=4096, max_images=8, salt=salt) for salt in (0, 1, 2)]
    assert len({int(packs.max()) for packs in found}) == 1
    for packs in found:
        assert np.bincount(packs, weights=tokens).max() <= 4096
    for one, other in ((0, 1), (0, 2), (1, 2)):
        shared = pairs(found[one]) & pairs(found[other])
        assert len(shared) < 0.15 * len(pairs(found[one]))


@pytest.mark.parametrize(
    "asked",
    [{"mixture": {"gone": 1}}, {"mixture": {"a": 1}, "curriculum": [{"until": 1.0, "weights": {"gone": 1}}]}],
)
def test_a_source_that_no_row_has_is_named(asked: dict[str, Any]) -> None:
    """Fails when a mistyped source packs another mixture, or a curriculum is not looked at behind a right mixture."""
    with pytest.raises(ConfigError, match=rf"^{[*asked][-1]}: no row has the source gone; the rows have a$"):
        check_mixture(parse_config(asked), ["a"])

"""Frequency with which documents are taken, and other neighbours for copies and epochs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.plan.cost import CostModel, causal_area
from preshard.packer_service.plan.make import Plan, make_plan, plan_documents
from preshard.packer_service.plan.mixture import check_mixture, count_copies, phase_tokens, take, take_mixture
from preshard.packer_service.plan.order import whole_groups
from preshard.packer_service.plan.pack import pack_documents
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.dataset.step_order import mix64
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


ODDS = [{"until": 0.25, "weights": {"a": 3}}, {"until": 1.0, "weights": {"b": 2, "c": 0.5}}]


def configured(curriculum: list[dict[str, object]] = ODDS, **keys: object) -> PackConfig:
    return parse_config({"curriculum": curriculum, **keys})


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 10**9), min_size=3, max_size=3))
def test_phases_have_their_tokens_and_sources_their_odds(tokens: list[int]) -> None:
    """Fails when a source is not used up, a phase is longer than asked, or weights are not what tells phases apart."""
    found = phase_tokens(configured(), ["a", "b", "c"], np.array(tokens, np.float64))
    np.testing.assert_allclose(found.sum(axis=1), tokens, rtol=1e-9)
    np.testing.assert_allclose(found.sum(axis=0), np.array([0.25, 0.75]) * sum(tokens), rtol=1e-6)
    odds = found[:, 0] / found[:, 1]
    np.testing.assert_allclose(odds[1:] / odds[0], [1 / 2 / 3, 1 / 0.5 / 3], rtol=1e-6)


def test_shares_that_fit_the_mixture_are_those_of_the_weights() -> None:
    """Fails when weights are not shares where the documents allow it."""
    phases = [{"until": 0.5, "weights": {"a": 3, "b": 1}}, {"until": 1.0, "weights": {"a": 1, "b": 3}}]
    found = phase_tokens(configured(phases), ["a", "b"], np.array([100.0, 100.0]))
    np.testing.assert_allclose(found, [[75, 25], [25, 75]])


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([{"until": 0.5, "weights": {"b": 0, "c": 0}}, {"until": 1.0}], "hold 33.3% of all tokens instead of 50.0%"),
        ([{"until": 0.5, "weights": {"a": 0, "b": 0, "c": 0}}, {"until": 1.0}], "given the tokens of no source"),
        ([{"until": 0.1}, {"until": 1.0, "weights": {"a": 0}}], "hold 33.3% of all tokens instead of 10.0%"),
        ([{"until": 0.5}], "the last of them 1.0"),
        ([{"until": 0.5}, {"until": 0.5}, {"until": 1.0}], "give ascending ends"),
    ],
)
def test_what_the_documents_do_not_give_is_refused(phases: list[dict[str, object]], words: str) -> None:
    """Fails when a phase is shorter or longer than asked and nobody hears of it."""
    with pytest.raises(ConfigError, match=words):
        phase_tokens(configured(phases), ["a", "b", "c"], np.full(3, 1000.0))


def test_every_document_comes_as_often_as_without_and_in_its_phase() -> None:
    """Fails when a document is lost, pieces are parted, copies meet, or a phase lacks what was asked for it."""
    rng, n, names = np.random.default_rng(0), 6000, ["a", "b", "c"]
    first = rng.random(n) < 0.8  # others are second pieces of the document before them
    first[0] = True
    hashes = np.sort(rng.integers(0, 2**63, n).astype(np.uint64))[np.cumsum(first) - 1]
    source = rng.integers(0, 3, n)[np.cumsum(first) - 1]
    columns = {
        "id_hash": hashes,
        "source_number": source,
        "piece": np.arange(n) - np.maximum.accumulate(np.where(first, np.arange(n), 0)),
        "tokens": rng.integers(50, 500, n),
    }
    keys = {"mixture": {"a": 1.5}, "epochs": 2, "seq_len": 4096, "order": {"window": 4}}
    config, without = configured(**keys), configured([], **keys)
    taken, totals = take_mixture(columns, config, names)
    plain, _ = take_mixture(columns, without, names)
    units = [sorted(zip(*(each.tolist() for each in found[:3]), strict=True)) for found in (taken, plain)]
    assert units[0] == units[1]
    assert (np.diff(taken.pass_number) >= 0).all()
    phase = taken.stage // 2
    of_unit: dict[tuple[int, int, int], set[int]] = {}
    for unit in zip(
        hashes[taken.document].tolist(), taken.epoch.tolist(), taken.copy_number.tolist(), phase.tolist(), strict=True
    ):
        of_unit.setdefault(unit[:3], set()).add(unit[3])
    assert {len(phases) for phases in of_unit.values()} == {1}
    np.testing.assert_allclose(totals.taken_by_phase, totals.asked_by_phase, rtol=0.01)
    plan_columns = {name: column[taken.document] for name, column in columns.items()}
    plan_columns |= {name: np.zeros(len(phase), np.int64) for name in ("images", "patches", "load")}
    plan_columns |= {"area": plan_columns["tokens"] ** 2, "pass_number": taken.pass_number, "stage": taken.stage}
    plan = plan_documents(plan_columns, config)
    of_pack = taken.stage[plan.document[plan.pack_edges[:-1]]]
    groups = whole_groups(of_pack, 4)
    grouped = of_pack[: groups.sum()]
    assert (np.diff(grouped) >= 0).all()
    assert np.unique(grouped).tolist() == [0, 2, 3], "the second epoch begins in the second phase"
    tokens = np.zeros((plan.n_packs, 3))
    np.add.at(tokens, (plan.pack_id, source[taken.document[plan.document]]), plan.length)
    edge = int(groups[:2].sum())
    got = np.array([tokens[:edge].sum(axis=0), tokens[edge : groups.sum()].sum(axis=0)])
    asked = np.array(totals.asked_by_phase)
    np.testing.assert_allclose(got / got.sum(1, keepdims=True), asked / asked.sum(1, keepdims=True), atol=0.02)

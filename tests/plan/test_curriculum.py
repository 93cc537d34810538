"""A curriculum: what its weights ask for, and that documents come in their phases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.plan.curriculum import phase_tokens
from preshard.packer_service.plan.make import plan_documents
from preshard.packer_service.plan.mixture import take_mixture
from preshard.packer_service.plan.order import whole_groups
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.errors import ConfigError

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
        ([{"until": 0.5, "weights": {"b": 0, "c": 0}}, {"until": 1.0}], "would hold 33.3% of all tokens, not 50.0%"),
        ([{"until": 0.5, "weights": {"a": 0, "b": 0, "c": 0}}, {"until": 1.0}], "by what there is of no source"),
        ([{"until": 0.1}, {"until": 1.0, "weights": {"a": 0}}], "would hold 33.3% of all tokens, not 10.0%"),
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

"""Packs of several sources hold each in its share, and are no more packs than packing by size takes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.plan.blend import STRETCH, tokens_by_source
from preshard.packer_service.plan.cost import CostModel, causal_area
from preshard.packer_service.plan.even_pack import even_packs
from preshard.packer_service.plan.make import Plan, make_plan
from preshard.packer_service.plan.order import straggler_ratio
from preshard.packer_service.plan.pack import pack_documents
from preshard.schemas.config import PackConfig

SEQ_LEN, MAX_IMAGES, ALIGNMENT = 36_864, 384, 16


def media(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, images and sources of texts, conversations about up to 8 images, and videos of 8 to 384 frames."""
    rng = np.random.default_rng(0)
    source = rng.choice(3, count, p=[0.5, 0.3, 0.2])
    images = np.choose(source, [np.zeros(count), rng.integers(1, 9, count), rng.integers(8, 385, count)])
    text = np.choose(np.minimum(source, 1), [rng.lognormal(6.5, 0.8, count), rng.integers(20, 600, count)])
    return (85 * images + text).clip(16, SEQ_LEN).astype(np.int64), images.astype(np.int64), source


def planned(count: int, epochs: int = 1) -> tuple[Plan, np.ndarray, np.ndarray]:
    """A plan, and the images and the source of each document, epoch by epoch."""
    tokens, images, source = (np.tile(column, epochs) for column in media(count))
    passes = np.repeat(np.arange(epochs), count)
    plan = make_plan(
        tokens=tokens,
        images=images,
        areas=causal_area(tokens),
        seq_len=SEQ_LEN,
        max_images=MAX_IMAGES,
        alignment=ALIGNMENT,
        window=64,
        seed=0,
        cost_model=CostModel.of(PackConfig()),
        sources=source,
        passes=passes,
        epochs=passes,
    )
    return plan, images, source


@pytest.mark.parametrize("epochs", [1, 2])
def test_every_thousand_packs_of_unlike_sources_hold_each_in_its_share(epochs: int) -> None:
    """Fails when packs of a step hold one kind of documents, so that no order of steps mixes the sources."""
    plan, images, source = planned(20_000, epochs)
    tokens = tokens_by_source(plan.pack_id, source[plan.document], plan.length, plan.n_packs)
    stretches = tokens[: plan.n_packs // STRETCH * STRETCH].reshape(-1, STRETCH, 3).sum(axis=1)
    shares = tokens.sum(axis=0) / tokens.sum()
    assert len(stretches) >= 2 * epochs
    assert np.abs(stretches / stretches.sum(axis=1, keepdims=True) - shares).max() < 0.005
    assert straggler_ratio(plan.cost, 64) < 1.02
    fewest = max(plan.aligned_length.sum() / SEQ_LEN, images.sum() / MAX_IMAGES)
    assert plan.n_packs <= 1.002 * fewest
    used = np.add.reduceat(images[plan.document], plan.pack_edges[:-1])
    assert used.max() <= MAX_IMAGES
    assert np.add.reduceat(plan.aligned_length, plan.pack_edges[:-1]).max() <= SEQ_LEN
    assert sorted(plan.document.tolist()) == list(range(len(images)))


def test_another_epoch_has_other_neighbours() -> None:
    """Fails when the packs of every epoch hold the same documents, since each is filled in the same order."""
    tokens, images, source = media(20_000)
    aligned = -(-tokens // ALIGNMENT) * ALIGNMENT
    budgets = {"seq_len": SEQ_LEN, "max_images": MAX_IMAGES, "sources": source}
    packings = [pack_documents(aligned, images, **budgets, salt=salt) for salt in (0, 1, 2)]
    kept = [len(neighbours(one) & neighbours(other)) for one, other in pairwise(packings)]
    assert max(kept) < 0.1 * len(neighbours(packings[0]))
    by_size = pack_documents(aligned, images, seq_len=SEQ_LEN, max_images=MAX_IMAGES)
    assert all(packs.max() <= 1.001 * by_size.max() for packs in packings)


def neighbours(packs: np.ndarray) -> set[tuple[int, int]]:
    """Pairs of documents that follow each other in a pack, by number."""
    order = np.argsort(packs, kind="stable")
    together = packs[order][1:] == packs[order][:-1]
    return set(zip(order[:-1][together].tolist(), order[1:][together].tolist(), strict=True))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99), n_sources=st.integers(2, 40), largest=st.sampled_from([3, 20, 64]),
    limit=st.sampled_from([None, 0, 1, 9]), salt=st.sampled_from([0, 5]),
)  # fmt: skip
def test_every_document_has_a_pack_and_no_budget_is_exceeded(
    seed: int, n_sources: int, largest: int, limit: int | None, salt: int
) -> None:
    """Fails when a document is lost, or a source that is owed much gets more than a pack holds."""
    rng = np.random.default_rng(seed)
    tokens, source = rng.integers(1, largest + 1, 12_000), rng.integers(0, n_sources, 12_000)
    images = rng.integers(0, (3 if limit is None else limit) + 1, 12_000)
    n_packs = int(pack_documents(tokens, images, seq_len=64, max_images=limit).max()) + 1
    given_packs = max(n_packs, STRETCH)
    packs = even_packs(
        tokens, images, source, max_tokens=64, max_images=limit, n_packs=given_packs, salt=salt
    )  # fmt: skip
    if packs is None:
        return
    assert np.bincount(packs).min() > 0
    assert np.bincount(packs, weights=tokens).max() <= 64
    assert limit is None or np.bincount(packs, weights=images).max() <= limit
    assert packs.max() < given_packs + given_packs // 1000


def test_one_source_and_few_packs_are_packed_by_size() -> None:
    """Fails when the plans of jobs that are promised no shares change."""
    tokens, images, source = media(5_000)
    budgets = {"max_tokens": SEQ_LEN, "max_images": MAX_IMAGES, "salt": 0}
    assert even_packs(tokens, images, np.zeros(5_000, np.int64), **budgets, n_packs=STRETCH) is None
    assert even_packs(tokens, images, source, **budgets, n_packs=STRETCH - 1) is None
    assert even_packs(np.full(5_000, 13), images * 0, source, max_tokens=64, max_images=0, n_packs=1200, salt=1) is None

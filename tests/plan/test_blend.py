"""Sources are mixed evenly over the order of the packs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.plan.blend import STRETCH, blend_order, tokens_by_source
from preshard.packer_service.plan.cost import CostModel, causal_area
from preshard.packer_service.plan.make import make_plan
from preshard.packer_service.plan.order import straggler_ratio
from preshard.schemas.config import PackConfig


def largest_deviation(tokens: np.ndarray) -> float:
    """Largest distance of a source's share in a whole stretch of packs from its share in all; packs in step order."""
    whole = tokens[: len(tokens) // STRETCH * STRETCH].reshape(-1, STRETCH, tokens.shape[1]).sum(axis=1)
    return float(np.abs(whole / whole.sum(axis=1, keepdims=True) - tokens.sum(axis=0) / tokens.sum()).max())


def test_every_thousand_packs_hold_each_source_in_its_share() -> None:
    """Fails when the order of groups leaves sources to chance, or pays for their shares with stragglers."""
    rng, n = np.random.default_rng(0), 200_000
    source = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    lengths = [rng.lognormal(mean, spread, n) for mean, spread in ((6.5, 0.8), (7.5, 0.6), (8.8, 0.7))]
    tokens = np.choose(source, lengths).clip(16, 36_864).astype(np.int64)
    plan = make_plan(
        tokens=tokens,
        images=np.zeros(n, np.int64),
        areas=causal_area(tokens),
        seq_len=36_864,
        max_images=None,
        alignment=16,
        window=64,
        seed=0,
        cost_model=CostModel.of(PackConfig()),
        sources=source,
    )
    found = tokens_by_source(plan.pack_id, source[plan.document], plan.length, plan.n_packs)
    assert plan.n_packs > 15 * STRETCH
    assert largest_deviation(found) < 0.005
    assert straggler_ratio(plan.cost, 64) < 1.01
    assert plan.n_packs <= 1.002 * plan.aligned_length.sum() / 36_864


@settings(deadline=None, max_examples=40)
@given(
    n_groups=st.integers(1, 60), window=st.sampled_from([1, 4, 16, 64, 2048]), n_sources=st.integers(1, 40),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_every_group_stands_once(n_groups: int, window: int, n_sources: int, seed: int) -> None:
    """Fails when an exchange loses a group, or a window beside the stretch's length breaks the search."""
    tokens = np.random.default_rng(seed).integers(0, 1000, (n_groups, min(window, 200), n_sources))
    assert sorted(blend_order(tokens).tolist()) == list(range(n_groups))


def test_many_sources_are_told_apart_by_size() -> None:
    """Fails when a source's tokens are lost, or the largest sources are the ones that are counted together."""
    source, tokens = np.arange(100), np.arange(100) + 1
    found = tokens_by_source(np.arange(100) % 7, source, tokens, 7)
    assert found.shape == (7, 32)
    assert found.sum() == tokens.sum()
    assert found[:, 0].sum() == 100
    assert found[:, 31].sum() == sum(range(1, 70))

"""Costs, schemes and the choice of packs: what the writer computes in one way comes out of another the same."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from preshard.packer_service.plan.cost import CostModel, causal_area, document_tiles
from preshard.packer_service.plan.cost import pack_cost as planned_cost
from preshard.packer_service.verify.dataset import MOST_PACKS, choose_packs
from preshard.packer_service.verify.independent.formulas import (
    contiguous,
    crop_work,
    least_largest_load,
    pack_cost,
    zigzag,
)
from preshard.schemas.boundaries import smallest_limit
from preshard.schemas.config import parse_config
from preshard.schemas.layout import contiguous_runs, segment_edges, zigzag_runs


@pytest.mark.parametrize("seed", range(5))
def test_a_cost_has_the_bits_of_the_plans(seed: int) -> None:
    """Fails when a term of either formula is left out, or they add in another order."""
    rng = np.random.default_rng(seed)
    dimensions = {"hidden_size": int(rng.integers(1, 9000)), "num_key_value_heads": 3, "vision_num_layers": 7}
    config = parse_config({"cost": dimensions, "vision": {"image_size": 224, "patch_size": 16, "pool_size": 3}})
    lengths = rng.integers(1, 3000, 12)
    area = int((lengths * (lengths + 1) // 2).sum() + rng.integers(0, 1000))
    causal = causal_area(lengths)
    areas = causal + np.array([area - causal.sum(), *[0] * 11])
    tiles = document_tiles(lengths, areas).sum(keepdims=True)
    load = 37 * CostModel.of(config).vision_work_per_crop
    assert load == 37 * crop_work(config.cost, config.vision)
    planned = planned_cost(CostModel.of(config), seq_len=config.seq_len, tiles=tiles, loads=np.array([load]))
    assert pack_cost(config, lengths=lengths.tolist(), area=area, load=load) == planned[0]


@pytest.mark.parametrize("degree", [1, 2, 3, 8])
def test_schemes_are_the_writers(degree: int) -> None:
    """Fails when either joins rows that do not touch, or leaves out a gap."""
    rng = np.random.default_rng(degree)
    lengths = 2 * degree * rng.integers(1, 20, 9)
    ends = np.cumsum(lengths)
    starts, aligned, seq_len = (ends - lengths)[1::2], lengths[1::2], int(ends[-1])
    documents = list(zip(starts.tolist(), (starts + aligned).tolist(), strict=True))
    assert zigzag(documents, seq_len, degree) == zigzag_runs(segment_edges(starts, aligned, seq_len), degree).tolist()
    assert contiguous(seq_len, degree) == contiguous_runs(seq_len, degree).tolist()


@pytest.mark.parametrize("n_packs", [0, 1, MOST_PACKS, MOST_PACKS + 1, 14, 1_000_003])
def test_the_first_and_the_last_pack_are_always_chosen(n_packs: int) -> None:
    """Fails when a large dataset takes long, or the packs are not spread over it."""
    if n_packs <= MOST_PACKS:
        assert choose_packs(n_packs, thorough=False) == range(n_packs)
        return
    chosen = choose_packs(n_packs, thorough=False)
    assert isinstance(chosen, frozenset)
    assert len(chosen) == MOST_PACKS
    assert {0, n_packs - 1} <= chosen
    steps = np.diff(sorted(chosen))
    assert steps.max() - steps.min() <= 1
    assert n_packs // 2 in choose_packs(n_packs, thorough=True)


def by_force(loads: list[int], parts: int) -> int:
    cuts = combinations(range(len(loads) + 1), parts - 1)
    return min(max(sum(loads[a:b]) for a, b in pairwise([0, *cut, len(loads)])) for cut in cuts)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_the_least_of_every_way_to_cut(parts: int) -> None:
    """Fails when the search for the meeting point is off by one, or loads of zero mislead it."""
    rng = np.random.default_rng(parts)
    for units in range(5, 9):
        for _ in range(40):
            loads = rng.integers(0, 6, units).tolist()
            assert least_largest_load(loads, parts) == by_force(loads, parts)


def test_few_units_and_many_parts() -> None:
    """Fails when a part without a unit counts, or a pack without an image has a load."""
    assert least_largest_load([], 4) == 0
    assert least_largest_load([384], 4) == 384
    assert least_largest_load([3, 9, 3], 4) == 9


def test_bisection_and_dynamic_programming_agree() -> None:
    """Fails when either is wrong on long lists, where no brute force reaches."""
    rng = np.random.default_rng(0)
    for parts in (2, 8, 64):
        loads = rng.integers(1, 10, 3000).tolist()
        assert least_largest_load(loads, parts) == smallest_limit(loads, parts)

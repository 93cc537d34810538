"""Costs, schemes and the choice of packs: what the writer computes in one way comes out of another the same."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from made_units import made_units

from preshard.packer_service.packs.pack import build_sequence
from preshard.packer_service.packs.rendered import RenderedDocument, cut, document_positions
from preshard.packer_service.packs.units import Units
from preshard.packer_service.plan.cost import CostModel, causal_area
from preshard.packer_service.plan.cost import pack_cost as planned_cost
from preshard.packer_service.verify.dataset import MOST_PACKS, choose_packs
from preshard.packer_service.verify.independent.formulas import (
    contiguous,
    crop_work,
    derive_positions,
    least_largest_load,
    pack_cost,
    zigzag,
)
from preshard.schemas.boundaries import smallest_limit
from preshard.schemas.config import parse_config
from preshard.schemas.header import Unit
from preshard.schemas.layout import segment_edges
from preshard.schemas.manifest import UNIT_KINDS, LayerMasks
from preshard.schemas.schemes import contiguous_runs, zigzag_runs


@pytest.mark.parametrize("window", [None, 1, 129, 1024])
@pytest.mark.parametrize("seed", range(5))
def test_a_cost_has_the_bits_of_the_plans(seed: int, window: int | None) -> None:
    """Fails when a term of either formula is left out, or they add in another order."""
    rng = np.random.default_rng(seed)
    dimensions = {"hidden_size": int(rng.integers(1, 9000)), "num_key_value_heads": 3, "vision_num_layers": 7}
    config = parse_config({"cost": dimensions, "vision": {"image_size": 224, "patch_size": 16, "pool_size": 3}})
    lengths = rng.integers(1, 3000, 12)
    area = int((lengths * (lengths + 1) // 2).sum() + rng.integers(0, 1000))
    causal = causal_area(lengths)
    areas = causal + np.array([area - causal.sum(), *[0] * 11])
    layers = None if window is None else LayerMasks(full_layers=3, window_layers=7, window=window, groups="all")
    model = CostModel.of(config, layers)
    tiles = model.attended_tiles(lengths, areas).sum(keepdims=True)
    load = 37 * model.vision_work_per_crop
    assert load == 37 * crop_work(config.cost, config.vision)
    planned = planned_cost(model, seq_len=config.seq_len, tiles=tiles, loads=np.array([load]))
    assert pack_cost(config, lengths=lengths.tolist(), area=area, load=load, layers=layers) == planned[0]


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


MERGE = 2


def drawn(rng: np.random.Generator, axes: int, annotations: int) -> RenderedDocument:
    """A document of images, of a video whose units follow each other at once, and of text; maybe with annotations."""
    unit_ids: list[int] = [-1] * int(rng.integers(0, 3))
    grids, media, kinds, steps = [], [], [], []
    for medium in range(int(rng.integers(0, 4))):
        video = bool(rng.integers(0, 2))
        height, width = rng.integers(1, 4, 2) * MERGE
        for _ in range(int(rng.integers(1, 4)) if video else 1):
            unit_ids += [len(grids)] * int(height * width // MERGE**2)
            grids.append([1, height, width])
            media.append(medium)
            kinds.append(UNIT_KINDS.index("frames" if video else "image"))
            steps.append(1.5 if video else 1.0)
        unit_ids += [-1] * int(rng.integers(0, 3))
    n_shared = len(unit_ids)
    branches = [0] * n_shared
    for number in range(1, annotations + 1):
        more = int(rng.integers(1, 5))
        unit_ids, branches = unit_ids + [-1] * more, branches + [number] * more
    if not unit_ids:
        unit_ids, branches = [-1], [0]
    of_token, branch_ids = np.array(unit_ids, np.int32), np.array(branches, np.int32)
    rows = np.bincount(of_token[of_token >= 0], minlength=len(grids))
    starts = [int(np.argmax(of_token == u)) for u in range(len(grids))]
    made = made_units([(start, start + int(n)) for start, n in zip(starts, rows, strict=True)])
    units = Units(
        kinds=np.array(kinds, np.int64),
        edges=made.edges,
        grids=np.array(grids, np.int64).reshape(-1, 3),
        patches=rows * MERGE**2,
        rows=made.rows,
        crops=made.crops,
        loads=made.loads,
        media=np.array(media, np.int64),
        time_steps=np.array(steps, np.float64),
        numbers=made.numbers,
    )
    blank = np.zeros(len(of_token), np.int32)
    return RenderedDocument(
        tokens=blank,
        labels=blank,
        loss_weights=blank.astype(np.float32),
        position_ids=document_positions(branch_ids, of_token, units, axes=axes, merge=MERGE),
        branch_ids=branch_ids,
        group_ids=blank - 1,
        unit_ids=of_token,
        units=units,
        n_shared=n_shared,
        n_branches=annotations,
        merge=MERGE,
    )


def listed(documents: list[RenderedDocument]) -> list[Unit]:
    """Their units as a sample lists them; tokens play no part in positions."""
    return [
        Unit(
            document=number,
            medium=int(units.media[i]),
            kind=UNIT_KINDS[units.kinds[i]],
            start=0,
            end=1,
            grid=units.grids[i].tolist(),
            patches=int(units.patches[i]),
            rows=int(units.rows[i]),
            load=1,
            time_step=float(units.time_steps[i]),
        )
        for number, units in enumerate(document.units for document in documents)
        for i in range(len(units))
    ]


@pytest.mark.parametrize("axes", [1, 3])
def test_both_ways_agree_on_any_documents(axes: int) -> None:
    """Fails when either forgets a branch, joins two images, splits a video, or forgets where a document starts."""
    rng, blocks = np.random.default_rng(0), 0
    for _ in range(60):
        documents = [drawn(rng, axes, int(rng.integers(0, 4))) for _ in range(3)]
        before_last = documents[0].units.edges[-1:, 0].tolist()  # a cut goes through no unit
        documents.append(cut(documents[0], 0, *before_last) if any(before_last) else documents[0])
        starts = np.cumsum([0, *(len(document) + 2 for document in documents)])
        pack = build_sequence(documents, starts[:-1].tolist(), seq_len=int(starts[-1]), pad_id=0, axes=axes)
        units = listed(documents)
        found = derive_positions(pack, units, len(documents), axes=axes, merge=MERGE)
        np.testing.assert_array_equal(pack.position_ids, found)
        blocks += len(units)
    assert blocks > 100


def test_an_annotation_goes_on_from_the_shared_prefix() -> None:
    """Fails when text after an image in the prefix, or in a second annotation, goes on from somewhere else."""
    of_token = np.array([-1, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1], np.int32)
    branches = np.array([0] * 8 + [1, 1, 2], np.int32)
    units = made_units([(1, 7)])
    units = Units(**{**{name: getattr(units, name) for name in Units.__slots__}, "grids": np.array([[1, 4, 6]])})
    found = document_positions(branches, of_token, units, axes=3, merge=2)
    assert found[:, 7:].tolist() == [[4, 5, 6, 5]] * 3
    assert found[1, 1:7].tolist() == [1, 1, 1, 2, 2, 2]
    assert found[2, 1:7].tolist() == [1, 2, 3, 1, 2, 3]

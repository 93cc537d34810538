"""Splits that a dataset was not packed for: derived while reading, equal to what the packer would have stored."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preshard.packer_service.packs.pack import image_boundaries
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import LayoutsInvalid, PoolingInvalid
from preshard.schemas.header import SampleHeader
from preshard.schemas.layout import BLOCK_SCHEMES, SCHEMES, unit_parts
from preshard.schemas.sequence import PackedSequence
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.split import (
    CropEdges,
    crop_edges,
    held_units,
    plan_split,
    pool_positions,
    read_header,
    token_layout,
)

DEGREES = (1, 2, 4, 8)


@pytest.fixture(scope="session")
def headers(packed: Path) -> list[SampleHeader]:
    dataset = PackedDataset(packed)
    return [read_header(dataset.files, place, dataset.config, 1) for place in dataset.files.packs()]


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme not in BLOCK_SCHEMES])
def test_derived_layouts_equal_the_packed_ones(packed: Path, headers: list[SampleHeader], scheme: str) -> None:
    """Fails when a run or a needed block differs from what the packer stores: ranks would wait, or attend to less."""
    config = PackedDataset(packed).config
    unplanned = config.model_copy(update={"layouts": ("zigzag", "balanced_ring"), "ring_degrees": (16,)})
    for header, degree in itertools.product(headers, DEGREES):
        packed_for = plan_split(config, layout=scheme, ring_degree=degree, ulysses_degree=1)
        derived = plan_split(unplanned, layout=scheme, ring_degree=degree, ulysses_degree=1)
        assert (packed_for.layout_stored, derived.layout_stored) == (True, False)
        theirs = token_layout(header, packed_for, config, "here")
        ours = token_layout(header, derived, unplanned, "here")
        assert ours is not theirs
        assert (ours.name, ours.block_size) == (theirs.name, theirs.block_size)
        for name in ("runs", "needs"):
            ours_array, theirs_array = getattr(ours, name), getattr(theirs, name)
            assert ours_array.dtype == theirs_array.dtype
            np.testing.assert_array_equal(ours_array, theirs_array)


def test_derived_boundaries_equal_the_packed_ones(packed: Path, headers: list[SampleHeader]) -> None:
    """Fails when derived boundaries are worse than, or other than, those that the packer solves."""
    config = PackedDataset(packed).config
    unplanned = config.model_copy(update={"cp_sizes": (16,)})
    for header, size in itertools.product(headers, DEGREES):
        stored = plan_split(config, layout="contiguous", ring_degree=1, ulysses_degree=size)
        derived = plan_split(unplanned, layout="contiguous", ring_degree=1, ulysses_degree=size)
        assert (stored.edges_stored, derived.edges_stored) == (True, False)
        theirs, ours = (crop_edges(header.head, split, "here", shares_crops=True) for split in (stored, derived))
        for name in ("crops", "pooled", "of_units"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_a_part_of_a_units_crops_keeps_the_grid_of_a_model(headers: list[SampleHeader]) -> None:
    """Fails when a rank's part of InternVL's crops gets a grid that counts crops, as it does without a model."""
    unit = headers[0].head.units[0].model_copy(update={"grid": [1, 6, 8], "rows": 12, "patches": 48, "load": 30})
    edges = CropEdges(crops=np.array([0, 1, 3]), pooled=np.array([0, 4, 12]), of_units=np.array([0, 3]))
    (part,), inner = held_units(headers[0].head.model_copy(update={"units": [unit]}), edges, 1)
    assert (part.grid, part.rows, part.patches, part.load, inner.tolist()) == ([1, 6, 8], 8, 32, 20, [0, 2])


@pytest.mark.parametrize(("ulysses", "ring"), [(16, 1), (1, 16), (4, 8)])
def test_the_ranks_of_an_unplanned_split_hold_everything_once(
    packed: Path, whole: list[Any], check_union: Callable[..., None], ulysses: int, ring: int
) -> None:
    """Fails when a rank's slice or crops at a size that no sample names overlap another's or leave a gap."""
    with pytest.warns(UserWarning, match="are not stored, so they are derived"):
        first = PackedDataset(packed, ulysses_degree=ulysses, ring_degree=ring)
    others = [
        PackedDataset(packed, ulysses_degree=ulysses, ring_degree=ring, cp_rank=rank)
        for rank in range(1, ulysses * ring)
    ]
    for _, batches in zip(range(3), zip(first, *others, strict=True), strict=False):
        sample = whole[batches[0].pack_id]
        bounds = [np.array(sample.head[name], np.int64) for name in ("cum_image_bounds", "cum_token_pooling_bounds")]
        loads = np.array([unit["load"] for unit in sample.head["units"]], np.int64)
        size, parts = ulysses * ring, unit_parts(*bounds, loads, shares_crops=True)
        boundaries = image_boundaries(parts.loads, parts.crops, parts.rows, [size])
        head = {**sample.head, "image_shard_boundaries": boundaries}
        check_union(list(batches), replace(sample, head=head))


def test_one_rank_says_once_what_packing_would_gain(packed: Path) -> None:
    """Fails when every rank warns, a planned split warns, or the line does not say what to pack for."""
    with pytest.warns(UserWarning, match="is not stored") as given:
        PackedDataset(packed, ring_degree=16)
    [line] = [str(warning.message) for warning in given]
    assert "contiguous.ring16 is not stored" in line
    assert "packing with 16 among ring_degrees would add balanced_ring and balanced_gather" in line
    assert "packing with 16 among cp_sizes" in line
    assert "\n" not in line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PackedDataset(packed, ring_degree=16, cp_rank=1)
        PackedDataset(packed, ring_degree=16, dp_rank=1, dp_size=2)
        PackedDataset(packed, ring_degree=8)


def test_a_derived_zigzag_from_spans_that_overlap(packed: Path, headers: list[SampleHeader]) -> None:
    """Fails when a damaged head gives some layout instead of an error that names the sample."""
    config = PackedDataset(packed).config.model_copy(update={"ring_degrees": (8,)})
    header = next(each for each in headers if len(each.head.documents) > 1)
    spans = [span.model_copy(update={"start": 0}) for span in header.head.documents]
    head = header.head.model_copy(update={"documents": spans})
    split = plan_split(config, layout="zigzag", ring_degree=4, ulysses_degree=1)
    broken = SampleHeader(head=head, sequence=header.sequence, layouts=header.layouts)
    with pytest.raises(LayoutsInvalid, match=r"here.json: its documents do not lie one after.*reaches past"):
        token_layout(broken, split, config, "here")


def test_every_planned_split_is_stored() -> None:
    """Fails when a legal configuration has a split that is derived though it was planned, or refused."""
    config = PackConfig()
    for scheme, ring, ulysses in itertools.product(config.layouts, config.ring_degrees, (1, 2, 4, 8)):
        if ring * ulysses not in config.cp_sizes:
            continue
        split = plan_split(config, layout=scheme, ring_degree=ring, ulysses_degree=ulysses)
        assert (split.layout_stored, split.edges_stored, split.advice) == (True, True, "")


def _sequence(pool_ids: list[int]) -> PackedSequence:
    zeros = np.zeros(len(pool_ids), np.int32)
    arrays = {f.name: zeros for f in fields(PackedSequence)}
    return PackedSequence(**{**arrays, "pool_ids": np.array(pool_ids, np.int32)})


def test_every_row_has_its_token(packed: Path, whole: list[Any]) -> None:
    """Fails when rows and tokens are swapped, or a batch knows only the tokens of its own rows."""
    for batch in PackedDataset(packed, ulysses_degree=2, ring_degree=2, cp_rank=2, layout="balanced_ring"):
        pool_ids = whole[batch.pack_id].arrays["pool_ids"]
        assert pool_ids[batch.pool_positions].tolist() == list(range(pool_ids.max() + 1))


def test_rows_in_another_order_are_accepted() -> None:
    """Fails when the reader demands ascending rows, which is a rule of the verifier on which reading does not rest."""
    assert pool_positions(_sequence([-1, 2, -1, 0, 1]), 3, "here").tolist() == [3, 4, 1]
    assert pool_positions(_sequence([-1, -1]), 0, "here").tolist() == []


@pytest.mark.parametrize("pool_ids", [[0, 0, 1], [0, 2, -1], [0, -1, -1], [0, 1, 2], [-2, 0, 1]])
def test_a_row_without_a_token_or_with_two_stops_the_reader(pool_ids: list[int]) -> None:
    """Fails when ranks would wait for a feature that no rank sends, or send one that no rank takes."""
    with pytest.raises(PoolingInvalid, match="each of 2 pooled rows once"):
        pool_positions(_sequence(pool_ids), 2, "here")

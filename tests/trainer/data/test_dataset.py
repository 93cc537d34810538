"""All ranks together hold the sample, and each holds what the file says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from preshard.schemas.layout import SCHEMES
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset

DEGREES = ((1, 1), (1, 2), (4, 1), (2, 2), (1, 8))


@cache
def _ranks(path: Path, ulysses: int, ring: int, layout: str) -> list[list[RankBatch]]:
    """Every step's batches, in rank order. Read once for all tests."""
    degrees: dict[str, Any] = {"ulysses_degree": ulysses, "ring_degree": ring}
    every = [list(PackedDataset(path, cp_rank=r, layout=layout, **degrees)) for r in range(ulysses * ring)]
    return [list(step) for step in zip(*every, strict=True)]


def test_the_dataset_has_the_cases_that_are_hard(whole: list[Any]) -> None:
    """Fails when the dataset lacks a case without which the tests below would prove less than they say."""
    units = [len(sample.head["cum_image_bounds"]) for sample in whole]
    assert len(whole) == 10
    assert 0 in units, "a pack of text alone"
    assert any(0 < n < 8 for n in units), "a pack with fewer units than ranks"
    assert any(n > 16 for n in units)
    assert any(sample.arrays["branch_ids"].max() > 1 for sample in whole), "annotations"
    pooled = [np.flatnonzero(sample.arrays["pool_ids"] >= 0) // 256 for sample in whole]
    assert any(len(set(blocks)) > 2 for blocks in pooled), "image tokens on several ranks"


@pytest.mark.parametrize(
    ("ulysses", "ring", "layout"),
    [*((*degrees, SCHEMES[number % len(SCHEMES)]) for number, degrees in enumerate(DEGREES)),
     *((2, 4, layout) for layout in SCHEMES)],
)  # fmt: skip
def test_the_ranks_hold_every_token_and_crop_once(
    packed: Path, whole: list[Any], check_union: Callable[..., None], ulysses: int, ring: int, layout: str
) -> None:
    """Fails when a slice, a piece of it or a range of crops is off by one, or goes to another rank."""
    steps = _ranks(packed, ulysses, ring, layout)
    assert sorted(step[0].pack_id for step in steps) == list(range(len(whole)))
    for batches in steps:
        assert len({batch.pack_id for batch in batches}) == 1
        check_union(batches, whole[batches[0].pack_id])


@pytest.mark.parametrize(("ulysses", "ring"), [(1, 1), (2, 1), (2, 2), (1, 8)])
def test_ranks_share_the_crops_of_a_still(
    packed_in_tiles: Path, whole_in_tiles: list[Any], check_union: Callable[..., None], ulysses: int, ring: int
) -> None:
    """Fails when a part of a unit has the rows or the load of the whole, or PNG crops are looked up by another name."""
    units = [np.diff([0, *sample.head["cum_image_bounds"]]) for sample in whole_in_tiles]
    assert any(len(set(crops)) > 1 and crops.max() > 2 for crops in units), "units of different numbers of crops"
    shared = 0
    for batches in _ranks(packed_in_tiles, ulysses, ring, "zigzag"):
        sample = whole_in_tiles[batches[0].pack_id]
        check_union(batches, sample)
        shared += not {int(edge) for edge in batches[0].image_edges} <= {0, *sample.head["cum_image_bounds"]}
        assert sum(unit.load for batch in batches for unit in batch.units) == sum(
            u["load"] for u in sample.head["units"]
        )
        assert all(unit.grid[0] * (unit.rows // unit.grid[0]) == unit.rows for b in batches for unit in b.units)
        assert all(torch.diff(batch.unit_edges).tolist() == [unit.grid[0] for unit in batch.units] for batch in batches)
    assert shared or ulysses * ring == 1


@pytest.mark.parametrize("layout", SCHEMES)
def test_a_rank_is_a_piece_of_its_ring_ranks_slice(packed: Path, whole: list[Any], layout: str) -> None:
    """Fails when Ulysses and ring are swapped in cp_rank, which the union of the ranks would not show."""
    for batches in _ranks(packed, 2, 4, layout):
        runs = whole[batches[0].pack_id].layouts[f"{layout}.ring4"]
        for cp_rank, batch in enumerate(batches):
            slices = [np.arange(start, start + n) for rank, start, n in runs if rank == cp_rank // 2]
            piece = np.concatenate(slices).reshape(2, -1)[cp_rank % 2]
            np.testing.assert_array_equal(batch.positions.numpy(), piece)
            np.testing.assert_array_equal(batch.layout.runs, runs)


def _with_crops_of(batch: RankBatch, other: RankBatch) -> RankBatch:
    return replace(batch, pixels=other.pixels, picture_sizes=other.picture_sizes)


@pytest.mark.parametrize("planted", ["images", "tokens", "positions", "mask"])
def test_the_check_of_the_union_sees_planted_errors(
    packed: Path, whole: list[Any], check_union: Callable[..., None], planted: str
) -> None:
    """Tests the check itself: crops of two ranks exchanged, a token lost, two slices exchanged, another mask."""
    steps = _ranks(packed, 1, 2, "zigzag")
    first, second = next(step for step in steps if len(step[0].images) > 1 and len(step[1].images) > 1)
    sample = whole[first.pack_id]
    check_union([first, second], sample)
    wrong = {
        "images": [_with_crops_of(first, second), _with_crops_of(second, first)],
        "tokens": [replace(first, tokens=torch.roll(first.tokens, 1)), second],
        "positions": [first, replace(second, positions=first.positions)],
        "mask": [first, replace(second, doc_ids=first.doc_ids + 1)],
    }
    with pytest.raises(AssertionError):
        check_union(wrong[planted], sample)


def test_dtypes_and_shapes(packed: Path) -> None:
    """Fails when a dtype changes: embeddings and the scatter of features index with int64, pixels stay bytes."""
    batch = next(iter(PackedDataset(packed, ring_degree=4, cp_rank=3, layout="balanced_ring")))
    for name in ("tokens", "labels", "pool_ids", "positions"):
        assert getattr(batch, name).dtype == torch.int64
        assert getattr(batch, name).shape == (512,)
    assert batch.position_ids.dtype == torch.int64
    assert batch.position_ids.shape == (1, 512)
    assert batch.loss_weights.dtype == torch.float32
    assert batch.doc_ids.dtype == torch.int32
    assert batch.doc_ids.shape == (batch.seq_len,) == (2048,)
    assert batch.images.dtype == torch.uint8
    assert batch.images.shape[1:] == (56, 56, 3)
    assert batch.layout.needs.shape == (4, 2048 // 64)


def test_a_rank_without_images_has_an_empty_tensor_of_the_right_shape(packed: Path) -> None:
    """Fails when a text-only pack gives None or a shape that a vision encoder cannot take."""
    batches = [b for b in PackedDataset(packed, ulysses_degree=8, cp_rank=7) if b.end_image_idx == b.start_image_idx]
    assert {batch.max_num_tokens == 0 for batch in batches} == {True, False}, (
        "without images, and with fewer than ranks"
    )
    assert all(batch.images.shape == (0, 56, 56, 3) for batch in batches)

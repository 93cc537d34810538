"""Layouts that advice derives: their loads beside those that packing stores, and what is said of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import measure_layout
from preshard.packer_service.layout.solve import solve_layouts
from preshard.packer_service.layout.tiles import whole_tiles
from preshard.packer_service.report.advice.dataset import advise_dataset
from preshard.packer_service.report.advice.estimate.derived import MOST_MASKS, PackMask, derivable_layouts, with_derived
from preshard.packer_service.report.advice.estimate.loads import COLUMNS, PackLoads
from preshard.packer_service.report.advice.estimate.split import SplitChoice
from preshard.packer_service.report.advice.question import make_question
from preshard.schemas.config import PackConfig
from preshard.schemas.model.savings import Saving
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.core.config import TrainConfig

SEQ_LEN = 2048
CONFIG = PackConfig(seq_len=SEQ_LEN, ring_degrees=(1, 8), cp_sizes=(1,))


def pack_of(lengths: Sequence[int]) -> PackMask:
    """Causal documents one after the other, padding behind them."""
    doc_ids = np.full(SEQ_LEN, -1, np.int32)
    doc_ids[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    zeros = np.zeros(SEQ_LEN, np.int32)
    mask = MaskArrays(doc_ids=doc_ids, branch_ids=zeros, group_ids=zeros - 1)
    return PackMask(MaskIndex.of(mask), np.unique([0, *np.cumsum(lengths), SEQ_LEN]).astype(np.int64))


def loads_of(packs: Sequence[PackMask]) -> PackLoads:
    columns = {name: np.ones(len(packs), np.int64) for name in COLUMNS}
    columns["attention_tiles"] = np.array([whole_tiles(pack.mask) for pack in packs])
    return PackLoads(n_packs=len(packs), spans=(range(len(packs)),), columns=columns, layouts={}, images={})


def some_packs(number: int) -> list[PackMask]:
    rng = np.random.default_rng(0)
    return [pack_of(16 * rng.integers(1, 25, rng.integers(1, 6))) for _ in range(number)]


def test_derived_loads_are_those_that_packing_stores() -> None:
    """Fails when slices, steps or fetched keys of a derived layout are another layout's, or a pack whose mask was read
    takes the loads of another."""
    packs = some_packs(MOST_MASKS)
    found = with_derived(loads_of(packs), CONFIG, 8, packs.__getitem__)
    assert found.masks == len(packs)
    assert found.derived == {(scheme, ring) for scheme in ("contiguous", "zigzag") for ring in (2, 4)}
    for number, pack in enumerate(packs):
        stored = solve_layouts(
            pack.mask, segment_edges=pack.edges, schemes=("contiguous", "zigzag"), ring_degrees=(2, 4)
        )
        for layout in stored:
            measured = measure_layout(pack.mask, layout)
            derived = found.layouts[layout.scheme, layout.ring_degree]
            assert derived.gather_path[number] == measured.gather_path
            assert derived.ring_steps[:, number].tolist() == measured.ring_steps.tolist()
            assert derived.most_keys[number] == measured.keys_fetched.max()


def test_a_pack_whose_mask_was_not_read_takes_the_most_similar_ones_share() -> None:
    """Fails when all masks of a large dataset are read, or the tiles of packs that were not are lost."""
    one, two = pack_of([SEQ_LEN]), pack_of([128] * 16)
    packs = [one, two] * (2 * MOST_MASKS)
    read: list[int] = []
    every = loads_of(packs)

    def mask(pack: int) -> PackMask:
        read.append(pack)
        return packs[pack]

    found = with_derived(every, CONFIG, 2, mask)
    assert len(read) == MOST_MASKS
    assert {number % 2 for number in read} == {0, 1}
    exact = with_derived(loads_of(packs[:2]), CONFIG, 2, packs.__getitem__)
    layout = found.layouts["contiguous", 2]
    assert layout.gather_path.tolist() == exact.layouts["contiguous", 2].gather_path.tolist() * (2 * MOST_MASKS)
    assert layout.most_keys.tolist() == [SEQ_LEN // 2, 0] * (2 * MOST_MASKS)


@pytest.mark.parametrize(
    ("settings", "gpus", "derived"),
    [
        ({}, 8, {("contiguous", 2), ("contiguous", 4), ("zigzag", 2), ("zigzag", 4)}),
        ({}, 16, {("contiguous", 2), ("contiguous", 4), ("zigzag", 2), ("zigzag", 4), ("contiguous", 16)}),
        ({"layouts": ("balanced_ring",)}, 8, {("contiguous", ring) for ring in (2, 4, 8)}),
        ({}, 3, set()),  # a slice would not be whole
        ({}, 2**17, {("contiguous", ring) for ring in (2, 4, 16, 32, 64)} | {("zigzag", 2), ("zigzag", 4)}),
        ({"ring_degrees": (1, 2, 4, 8)}, 8, set()),
    ],
)
def test_what_a_reader_can_derive(settings: dict[str, object], gpus: int, derived: set[tuple[str, int]]) -> None:
    """Fails when a split is named that the reader refuses, or one that it takes is left out."""
    config = PackConfig.model_validate({**CONFIG.model_dump(), **settings})
    assert set(derivable_layouts(config, gpus)) == derived


def test_no_pack_has_no_mask_to_read() -> None:
    """Fails when deriving divides by the packs of an empty dataset."""
    empty = loads_of([])
    assert with_derived(empty, CONFIG, 8, some_packs(0).__getitem__) is empty


def test_the_advice_says_what_was_derived(tiny_dataset: Path) -> None:
    """Fails when an estimate of a derived layout looks like one of a packed layout."""
    advice = advise_dataset(str(tiny_dataset), make_question({"gpus": 16, "limit": 500}))
    derived = [split for split in advice.splits if split.derived]
    assert {(split.layout, split.ring_degree) for split in derived} >= {("contiguous", 16)}
    assert not any(split.stored for split in derived)
    assert any("16: the loads of contiguous at ring degree" in note for note in advice.notes)


def test_advice_without_shards_leaves_out_what_it_cannot_derive(tiny_dataset: Path, tmp_path: Path) -> None:
    """Fails when a shard that is gone takes the answer with it, though the tables hold what was packed."""
    shutil.copytree(tiny_dataset, tmp_path / "dataset")
    shutil.rmtree(tmp_path / "dataset/shards")
    advice = advise_dataset(str(tmp_path / "dataset"), make_question({"gpus": 16, "limit": 500}))
    assert advice.splits
    assert not any(split.derived for split in advice.splits)
    assert any("no mask could be read to derive them: shards/" in note for note in advice.notes)


@pytest.mark.parametrize(
    ("degrees", "recompute", "options"),
    [
        ({"kind": "none", "dp": 1}, "none", ""),
        ({"kind": "none", "dp": 64}, "full", "--dp-shard 64 --recompute full"),
        ({"ulysses": 8, "kind": "ulysses", "dp": 8}, "none", "--ulysses 8 --attention ulysses --dp-shard 8"),
        ({"ulysses": 2, "ring": 4, "kind": "ring"}, "selective", None),
    ],
)
def test_the_trainer_takes_the_options(degrees: dict[str, Any], recompute: Any, options: str | None) -> None:
    """Fails when the advice names an option that the trainer does not have, or not in that form. Where nothing must be
    computed again, the trainer's own estimate decides.
    """
    split = SplitChoice(**{"ulysses": 1, "ring": 1, "layout": "zigzag", "dp": 1, **degrees})
    written = split.options(Saving(recompute=recompute))
    assert written == options or options is None
    words = written.split()
    names = [word.removeprefix("--").replace("-", "_") for word in words[::2]]
    given = dict(zip(names, words[1::2], strict=True))
    taken = TrainConfig.model_validate({"data": "d", "model": "m", "steps": 1, **given})
    assert (taken.ulysses, taken.ring, taken.dp_shard, taken.recompute) == (
        split.ulysses,
        split.ring,
        split.dp,
        "auto" if recompute == "none" else recompute,
    )
    if split.ring > 1:
        assert (taken.layout, taken.attention) == (split.layout, split.kind)

"""The balance from measures: means, floors, spreads, and which layout the cost model prefers."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from preshard.packer_service.report.compare import balance_entries
from preshard.packer_service.report.console import print_balances
from preshard.packer_service.report.figures import FIGURES, FLOOR, MEASURED
from preshard.packer_service.report.measures import (
    SampledMeasures,
    all_balances,
    figure_values,
    image_balance,
    layout_balance,
    shard_spreads,
)
from preshard.packer_service.report.records import Balances, mean_of
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import MEASURES, MeasureGroup
from preshard.schemas.sections import CostConfig
from tests.support.made_records import made_measures

DEGREE, SEQ_LEN = 2, 256
IMAGES = MeasureGroup(scheme=None, degree=DEGREE)


def layout(tiles: list[int], ring_steps: list[int], keys_fetched: list[int]) -> dict[str, Any]:
    """The columns of one pack of four tiles and two ranks."""
    return {
        "attention_tiles": 4, "gather_path": max(tiles), "ring_path": sum(ring_steps), "sum_attention": 4,
        "most_attention": 3, "sum_tiles": sum(tiles), "sum_keys": sum(keys_fetched), "most_keys": max(keys_fetched),
        "possible_keys": SEQ_LEN, "attention": [1, 3], "tiles": tiles, "ring_steps": ring_steps,
        "keys_fetched": keys_fetched,
    }  # fmt: skip


def images(crops: list[int], pooled: list[int], work: list[int], least: int) -> dict[str, Any]:
    """The columns of one pack's image boundaries."""
    columns: dict[str, Any] = {"least_image_load": least}
    for name, loads in zip(("images", "pooled_tokens", "image_load"), (crops, pooled, work), strict=True):
        columns |= {name: loads, f"sum_{name}": sum(loads), f"most_{name}": max(loads)}
    return columns


def config_of(key_weight: float, layouts: tuple[str, ...]) -> PackConfig:
    """A configuration in which moving one token's keys takes as long as so many tiles."""
    cost = CostConfig()
    from preshard.packer_service.layout.measures import key_weight as weight_of

    tflops = cost.attention_tflops * key_weight / weight_of(cost)
    return PackConfig(
        seq_len=SEQ_LEN,
        block_size=64,
        layouts=layouts,
        ring_degrees=(DEGREE,),
        cp_sizes=(DEGREE,),
        cost=cost.model_copy(update={"attention_tflops": tflops}),
    )


NO_IMAGES = images([0, 0], [0, 0], [0, 0], 0)
FAR = layout(tiles=[1, 1], ring_steps=[1, 0], keys_fetched=[0, 4])
NEAR = layout(tiles=[2, 3], ring_steps=[2, 0], keys_fetched=[0, 0])


def measures_of(
    layouts: dict[str, dict[str, Any]], key_weight: float, packs: list[dict[str, Any]] | None = None
) -> SampledMeasures:
    """Packs that differ in their images alone."""
    config = config_of(key_weight, tuple(layouts))
    rows = [
        {"pack_id": pack, "scheme": scheme, "degree": DEGREE, **columns}
        for pack, of_images in enumerate([NO_IMAGES] if packs is None else packs)
        for scheme, columns in [*sorted(layouts.items(), key=lambda item: ORDER.index(item[0])), (None, of_images)]
    ]
    return SampledMeasures(config=config, rows=pa.Table.from_pylist(rows, schema=MEASURES))


ORDER = ("contiguous", "zigzag", "balanced_ring")


def balance_of(layouts: dict[str, dict[str, Any]], key_weight: float) -> Balances:
    """The balance of one pack of four tiles."""
    return all_balances(measures_of(layouts, key_weight))


def image_balance_of(*packs: dict[str, Any]) -> Any:
    return image_balance(measures_of({"contiguous": NEAR}, 1.0, list(packs)), IMAGES)


@pytest.mark.parametrize(("key_weight", "cost", "preferred"), [(1e-9, 2.0, "zigzag"), (1.0, 3.0, "contiguous")])
def test_the_more_keys_cost_the_fewer_are_moved(key_weight: float, cost: float, preferred: str) -> None:
    """Fails when the weight is left out, or when the ring is charged only for the keys that are needed.

    The near layout costs 2 as a ring and 3 as a gather. When a key costs as much as a tile, its ring moves a slice of
    128 keys in vain, so that 3 is the smaller cost.
    """
    found = balance_of({"contiguous": NEAR, "zigzag": FAR}, key_weight)
    assert found.balance["contiguous"][DEGREE].cost == pytest.approx(cost)
    assert found.preferred == {DEGREE: {preferred: 1}}


def test_of_two_equal_layouts_the_first_in_the_formats_order_is_preferred() -> None:
    """Fails when the preference depends on the order of the configuration."""
    assert balance_of({"balanced_ring": NEAR, "contiguous": NEAR}, 1.0).preferred == {DEGREE: {"contiguous": 1}}


def test_paths_are_multiples_of_the_floor_and_imbalance_is_of_the_mean() -> None:
    """Fails when a path is divided by all tiles instead of a rank's share, or a load by the largest one."""
    row = balance_of({"contiguous": NEAR}, 1.0).balance["contiguous"][DEGREE]
    means = [measure.mean for measure in (row.gather_path, row.ring_path, row.traffic, row.attention.imbalance)]
    assert means == [1.5, 1.0, 0.0, 1.5]
    assert (row.tile_floor, row.gather_path_tiles, row.ring_path_tiles) == (2.0, 3.0, 2.0)
    assert (row.attention.rank_mean, row.tiles.rank_mean) == ([1.0, 3.0], [2.0, 3.0])


def test_the_most_keys_are_those_of_one_rank_in_one_pack() -> None:
    """Fails when the room for gathered keys is taken from a mean over ranks, or from the sum of them."""
    far = layout(tiles=[1, 1], ring_steps=[1, 0], keys_fetched=[2, 4])
    found = layout_balance(measures_of({"zigzag": far}, 1.0), MeasureGroup(scheme="zigzag", degree=DEGREE))
    assert (found.most_keys.mean, found.most_keys.max, found.keys_fetched) == (4.0, 4.0, [2.0, 4.0])


def test_a_pack_without_any_load_has_no_imbalance() -> None:
    """Fails on a division by zero, or when a pack of text counts as perfectly balanced images."""
    found = image_balance_of(NO_IMAGES)
    assert (found.packs, found.images.imbalance.packs, found.pooled_tokens.imbalance.mean) == (1, 0, None)
    found = image_balance_of(NO_IMAGES, images([3, 1], [12, 4], [30, 10], 24))
    assert (found.images.imbalance.packs, found.images.imbalance.mean, found.images.rank_mean) == (1, 1.5, [1.5, 0.5])
    assert (found.image_load.imbalance.mean, found.weighted_imbalance, found.excess) == (1.5, 1.5, 1.25)


def test_packs_count_in_the_imbalance_by_what_they_have_to_share() -> None:
    """Fails when a pack with a single image weighs as much as one full of video: the mean of ratios says 1.505."""
    video, single = images([101, 99], [101, 99], [101, 99], 100), images([1, 0], [1, 0], [1, 0], 1)
    found = image_balance_of(video, single)
    assert found.image_load.imbalance.mean == pytest.approx((1.01 + 2) / 2)
    assert (found.weighted_imbalance, found.excess) == (102 / 100.5, 102 / 101)
    assert image_balance_of(NO_IMAGES).weighted_imbalance is None


def test_nothing_at_all_has_a_balance() -> None:
    """Fails when a dataset without packs, or a plan without documents, ends in an error."""
    found = all_balances(measures_of({"contiguous": NEAR}, 1.0, []))
    row = found.balance["contiguous"][DEGREE]
    assert (found.balanced_packs, row.packs, row.cost, row.gather_path.mean, row.tiles.rank_mean) == (
        0,
        0,
        0,
        None,
        [0, 0],
    )
    assert (found.images[DEGREE].excess, found.preferred) == (None, {DEGREE: {}})


MANY = PackConfig(layouts=("contiguous", "zigzag"), ring_degrees=(1, 2, 4), cp_sizes=(2,), packs_per_shard=7)
GROUP = MeasureGroup(scheme="zigzag", degree=4)


@pytest.mark.parametrize("n_packs", [19, 20, 21, 399, 400, 401])
def test_spreads_are_of_values_that_occur(n_packs: int) -> None:
    """Fails when 95% is interpolated or off by one, or a pack without a tile counts."""
    measures = SampledMeasures(config=MANY, rows=made_measures(np.arange(n_packs), MANY))
    rows = [row for row in measures.rows.to_pylist() if (row["scheme"], row["degree"]) == ("zigzag", 4)]
    values = sorted(row["gather_path"] / (row["attention_tiles"] / 4) for row in rows if row["attention_tiles"])
    found = layout_balance(measures, GROUP).gather_path
    assert (found.packs, found.p95, found.max) == (len(values), values[-(len(values) // 20) - 1], values[-1])
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)


@pytest.mark.parametrize("packs", [range(10, 90), [10, 11, 40, 41, 42, 77]], ids=["consecutive", "some"])
def test_values_and_spreads_of_packs_are_their_own(packs: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a pack is given another's value, one without a value has a number, or packs count in another shard."""
    monkeypatch.setattr(SampledMeasures, "block_packs", 16)
    measures = SampledMeasures(config=MANY, rows=made_measures(np.arange(100), MANY))
    rows = measures.rows.to_pylist()
    for figure, group, over, under in (
        (MEASURED["gather_path"], GROUP, "gather_path", "attention_tiles"),
        (MEASURED["images"], IMAGES, "most_images", "sum_images"),
    ):
        own = [row for row in rows if (row["scheme"], row["degree"]) == (group.scheme, group.degree)]
        wanted = [own[p][over] / (own[p][under] / group.degree) if own[p][under] else None for p in packs]
        found = figure_values(measures, group, [figure], packs)[figure.key]
        assert [None if np.isnan(value) else value for value in found.tolist()] == wanted
        of_shards = shard_spreads(measures, group, [figure], packs, 7)
        shards = {
            k: [v for _, v in each if v is not None]
            for k, each in groupby(zip(packs, wanted, strict=True), lambda e: e[0] // 7)
        }
        assert {k: (s.packs, s.max, s.mean) for k, (s,) in of_shards.items()} == {
            k: (len(each), max(each, default=None), pytest.approx(np.mean(each)) if each else None)
            for k, each in shards.items()
        }


def test_every_figure_reads_columns_that_are_stored() -> None:
    """Fails when an entry names a column that no row of its kind has, or two have one name."""
    assert len({figure.key for figure in FIGURES}) == len(FIGURES)
    for figure in FIGURES:
        group = GROUP if figure.of == "layout" else IMAGES
        assert figure.columns() <= {*group.columns}, figure.key
        assert figure.columns() or figure.ranks, figure.key
        assert not figure.columns() & {*group.loads}, "a list is read where its sum would do"


def test_a_narrow_terminal_shows_names_whole() -> None:
    """Fails when a terminal of 60 columns shows balanced_ring and balanced_gather both as ``bala…``."""
    found = all_balances(measures_of({"contiguous": NEAR}, 1.0, [images([1, 3], [3, 5], [10, 30], 20)]))
    narrow = Console(record=True, width=60, file=StringIO())
    print_balances(found, narrow)
    text = narrow.export_text()
    assert "contiguous" in text
    assert "…" not in text


def test_every_figure_is_shown_by_what_its_entry_says() -> None:
    """Fails when a place where people read figures has a list of its own, and so misses a new figure."""
    packs = [images([1, 3], [3, 5], [10, 30], 20)]
    found = all_balances(measures_of({"contiguous": NEAR}, 1.0, packs))
    printed = Console(record=True, width=300, file=StringIO())
    print_balances(found, printed)
    text = printed.export_text()
    compared = {(part, name.partition(": ")[2]): said for part, name, *said in balance_entries(found)}
    for figure in FIGURES:
        section = "balance" if figure.of == "layout" else "images"
        row: Any = found.balance["contiguous"][DEGREE] if figure.of == "layout" else found.images[DEGREE]
        assert bool(figure.label) == bool(figure.where) == bool(figure.explain), figure.key
        is_printed = bool(figure.label) and f"{figure.label}: {figure.explain}" in text
        assert is_printed == ("report" in figure.where or figure is FLOOR), figure.key
        said = [figure.unit, mean_of(figure, row), figure.better] if "comparison" in figure.where else None
        assert compared.get((section, figure.label)) == said, figure.key

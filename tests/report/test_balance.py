"""The balance from loads: means, floors, spreads, and which layout the cost model prefers."""

from __future__ import annotations

import numpy as np
import pytest

from preshard.packer_service.report.balance import balances, image_balance
from preshard.packer_service.report.loads import Block, ImageLoadColumns, LayoutLoadColumns
from preshard.packer_service.report.records import Balances
from preshard.packer_service.report.spreads import spread
from preshard.schemas.balance import LoadGroup
from preshard.schemas.config import CostConfig, PackConfig

DEGREE, SEQ_LEN = 2, 256


def layout(tiles: list[int], ring_step: list[int], keys_fetched: list[int]) -> Block:
    """Loads of one pack and two ranks."""
    return np.array([[1, 3], tiles, ring_step, keys_fetched], np.int64)[:, :, None]


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


NO_IMAGES = np.zeros((4, DEGREE, 1), np.int64)
FAR = layout(tiles=[1, 1], ring_step=[1, 0], keys_fetched=[0, 4])
NEAR = layout(tiles=[2, 3], ring_step=[2, 0], keys_fetched=[0, 0])


def balance_of(layouts: dict[str, Block], key_weight: float, images: Block = NO_IMAGES) -> Balances:
    """The balance of one pack of four tiles."""

    def read(group: LoadGroup) -> list[Block]:
        return [layouts[group.scheme] if group.scheme else images]

    return balances(read, np.array([4]), config_of(key_weight, tuple(layouts)))


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


def test_a_pack_without_any_load_has_no_imbalance() -> None:
    """Fails on a division by zero, or when a pack of text counts as perfectly balanced images."""
    found = image_balance(ImageLoadColumns.of([NO_IMAGES], DEGREE), DEGREE)
    assert (found.packs, found.images.imbalance.packs, found.pooled_tokens.imbalance.mean) == (1, 0, None)
    both = np.concatenate([NO_IMAGES, np.array([[[3], [1]], [[12], [4]], [[30], [10]], [[24], [24]]])], axis=2)
    found = image_balance(ImageLoadColumns.of([both], DEGREE), DEGREE)
    assert (found.images.imbalance.packs, found.images.imbalance.mean, found.images.rank_mean) == (1, 1.5, [1.5, 0.5])
    assert (found.image_load.imbalance.mean, found.weighted_imbalance, found.excess) == (1.5, 1.5, 1.25)


def test_packs_count_in_the_imbalance_by_what_they_have_to_share() -> None:
    """Fails when a pack with a single image weighs as much as one full of video: the mean of ratios says 1.505."""
    video, single = [[101], [99]], [[1], [0]]
    loads = np.concatenate([np.array([each] * 4) for each in (video, single)], axis=2)
    loads[3] = [[100, 1], [100, 1]]
    found = image_balance(ImageLoadColumns.of([loads], DEGREE), DEGREE)
    assert found.image_load.imbalance.mean == pytest.approx((1.01 + 2) / 2)
    assert (found.weighted_imbalance, found.excess) == (102 / 100.5, 102 / 101)
    assert image_balance(ImageLoadColumns.of([NO_IMAGES], DEGREE), DEGREE).weighted_imbalance is None


def test_blocks_give_what_the_whole_gives() -> None:
    """Fails when packs of a later block meet the floors of an earlier one, or a block's sums are lost."""
    rng = np.random.default_rng(0)
    loads, tiles = rng.integers(0, 9, (4, DEGREE, 50)), rng.integers(0, 20, 50)
    tiles[8] = 0  # a pack without an allowed pair
    config = config_of(1.0, ("contiguous",))
    whole = LayoutLoadColumns.of([loads], tiles, DEGREE, config)
    cut = LayoutLoadColumns.of([loads[..., :7], loads[..., 7:30], loads[..., 30:]], tiles, DEGREE, config)
    for name in ("attention", "tiles", "gather_path", "ring_path", "traffic", "cost", "rank_attention", "rank_keys"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name))
    np.testing.assert_array_equal(whole.some(slice(7, 30)).ring_path, whole.ring_path[7:30])
    assert np.flatnonzero(np.isnan(whole.ring_path)).tolist() == np.flatnonzero(tiles == 0).tolist() != []


def test_the_spread_is_of_values_that_occur() -> None:
    """Fails when 95% is interpolated, or a nan counts."""
    found = spread(np.array([*range(1, 21), np.nan], np.float64))
    assert (found.packs, found.mean, found.p95, found.max) == (20, 10.5, 19.0, 20.0)
    assert spread(np.full(3, np.nan)).model_dump() == {"packs": 0, "mean": None, "p95": None, "max": None}

"""The balance of layouts and image boundaries over packs, from the loads of each pack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Float64, Int64

from preshard.packer_service.report.loads import Block, ImageLoadColumns, LayoutLoadColumns
from preshard.packer_service.report.records import Balances, ImageBalance, LayoutBalance, RankLoads
from preshard.packer_service.report.spreads import PartedMean, PartedSpread
from preshard.schemas.balance import LoadGroup, load_groups
from preshard.schemas.config import PackConfig

RANK_MEAN_DIGITS = 3
"""Decimals of a rank's mean load: loads are whole numbers, of which thousandths are more than enough."""


def balances(
    read: Callable[[LoadGroup], Iterable[Block]], tiles: Int64[np.ndarray, "packs"], config: PackConfig
) -> Balances:
    """The balance of everything that a configuration stores. One block of one degree is in memory at a time.

    Args:
        read: the loads of a group for all packs, in blocks of packs that are the same for every group.
        tiles: attention tiles of every pack in natural order, the floor of the critical paths.
        config: the configuration that the packs were made with.
    """
    groups = load_groups(config)
    layouts: dict[int, dict[str, LayoutBalance]] = {}
    preferred: dict[int, dict[str, int]] = {}
    for degree in sorted({group.degree for group in groups if group.scheme}):
        of_degree = [group for group in groups if group.scheme and group.degree == degree]
        layouts[degree], preferred[degree] = _of_degree(of_degree, read, tiles, config)
    images: dict[int, ImageBalance] = {}
    for group in groups:
        if group.scheme is None:
            sums = ImageSums(group.degree, len(tiles))
            for block in read(group):
                sums.add(ImageLoadColumns.of([block], group.degree))
            images[group.degree] = sums.balance()
    schemes = dict.fromkeys(group.scheme for group in groups if group.scheme)
    return Balances(
        balanced_packs=len(tiles),
        balance={scheme: {degree: layouts[degree][scheme] for degree in layouts} for scheme in schemes},
        images=images,
        preferred=preferred,
    )


def _of_degree(
    groups: Sequence[LoadGroup],
    read: Callable[[LoadGroup], Iterable[Block]],
    tiles: Int64[np.ndarray, "packs"],
    config: PackConfig,
) -> tuple[dict[str, LayoutBalance], dict[str, int]]:
    """The layouts of one ring degree, and how many packs the cost model prefers each of them for."""
    sums = {group.scheme or "": LayoutSums(group.scheme or "", group.degree, len(tiles)) for group in groups}
    counts, first = Counter[str](), 0
    for blocks in zip(*map(read, groups), strict=True):
        end = first + blocks[0].shape[2]
        cheapest = Cheapest(end - first)
        for of_layout, group, block in zip(sums.values(), groups, blocks, strict=True):
            loads = LayoutLoadColumns.of([block], tiles[first:end], group.degree, config)
            of_layout.add(loads)
            cheapest.add(of_layout.layout, loads.cost)
        counts.update(cheapest.counts())
        first = end
    in_order = {scheme: counts[scheme] for scheme in sums if counts[scheme]}
    return {scheme: each.balance() for scheme, each in sums.items()}, _most_frequent(in_order)


class Cheapest:
    """The layout of least cost for each pack; of equal ones the one that was added first."""

    def __init__(self, packs: int) -> None:
        self._schemes: list[str] = []
        self._cost: Float64[np.ndarray, "packs"] = np.full(packs, np.inf)
        self._best: Int64[np.ndarray, "packs"] = np.zeros(packs, np.int64)

    def add(self, scheme: str, cost: Float64[np.ndarray, "packs"]) -> None:
        """Adds a layout with its modelled cost of each pack."""
        self._best[cost < self._cost] = len(self._schemes)
        self._cost = np.minimum(self._cost, cost)
        self._schemes.append(scheme)

    def counts(self) -> dict[str, int]:
        """Packs of each layout that is preferred for any, the most frequent first."""
        counts = np.bincount(self._best, minlength=len(self._schemes)).tolist()
        return _most_frequent({scheme: count for scheme, count in zip(self._schemes, counts, strict=True) if count})


def _most_frequent(counts: dict[str, int]) -> dict[str, int]:
    """The same with the most frequent first; of equally frequent ones in the order that they have."""
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


class LayoutSums:
    """One layout at one ring degree, over packs that come in parts.

    Args:
        layout, ring_degree: which it is.
        most_packs: the most packs that come.
    """

    def __init__(self, layout: str, ring_degree: int, most_packs: int) -> None:
        self.layout, self.ring_degree = layout, ring_degree
        self._means = {name: PartedMean() for name in ("tile_floor", "gather_path_tiles", "ring_path_tiles", "cost")}
        self._spreads = {
            name: PartedSpread(most_packs) for name in ("gather_path", "ring_path", "traffic", "attention", "tiles")
        }
        self._ranks = {name: np.zeros(ring_degree, np.int64) for name in ("attention", "tiles", "keys")}

    def add(self, loads: LayoutLoadColumns) -> None:
        """Adds the loads of some packs."""
        for name, mean in self._means.items():
            mean.add(getattr(loads, name))
        for name, spread in self._spreads.items():
            spread.add(getattr(loads, name))
        for name in self._ranks:
            self._ranks[name] += getattr(loads, f"rank_{name}")

    def balance(self) -> LayoutBalance:
        packs = self._means["cost"].count
        means = {name: mean.mean() or 0.0 for name, mean in self._means.items()}
        spreads = {name: each.spread() for name, each in self._spreads.items()}
        ranks = {name: _rank_mean(total, packs) for name, total in self._ranks.items()}
        return LayoutBalance(
            layout=self.layout,
            ring_degree=self.ring_degree,
            packs=packs,
            **means,
            **{name: spreads[name] for name in ("gather_path", "ring_path", "traffic")},
            **{name: RankLoads(rank_mean=ranks[name], imbalance=spreads[name]) for name in ("attention", "tiles")},
            keys_fetched=ranks["keys"],
        )


def layout_balance(loads: LayoutLoadColumns, layout: str, ring_degree: int) -> LayoutBalance:
    """One layout at one ring degree over the packs of ``loads``."""
    sums = LayoutSums(layout, ring_degree, len(loads.cost))
    sums.add(loads)
    return sums.balance()


class ImageSums:
    """The image boundaries of one CP size, over packs that come in parts.

    Args:
        cp_size: the CP size.
        most_packs: the most packs that come.
    """

    SHARED = ("images", "pooled_tokens", "image_load")

    def __init__(self, cp_size: int, most_packs: int) -> None:
        self.cp_size = cp_size
        self._totals = {name: PartedMean() for name in ("largest_load", "mean_load", "least_load")}
        self._spreads = {name: PartedSpread(most_packs) for name in self.SHARED}
        self._ranks = {name: np.zeros(cp_size) for name in self.SHARED}

    def add(self, loads: ImageLoadColumns) -> None:
        """Adds the loads of some packs."""
        for name, total in self._totals.items():
            total.add(getattr(loads, name))
        for name in self.SHARED:
            self._spreads[name].add(getattr(loads, name))
            self._ranks[name] += getattr(loads, f"rank_{name}")

    def balance(self) -> ImageBalance:
        packs = self._totals["mean_load"].count
        shared = {
            name: RankLoads(rank_mean=_rank_mean(self._ranks[name], packs), imbalance=self._spreads[name].spread())
            for name in self.SHARED
        }
        return ImageBalance(
            cp_size=self.cp_size,
            packs=packs,
            **shared,
            weighted_imbalance=self._ratio("mean_load"),
            excess=self._ratio("least_load"),
        )

    def _ratio(self, of: str) -> float | None:
        """Sum over sum: a pack counts by what it has to share, so that one with a single unit hardly counts."""
        whole = self._totals[of].total
        return self._totals["largest_load"].total / whole if whole else None


def image_balance(loads: ImageLoadColumns, cp_size: int) -> ImageBalance:
    """The image boundaries of one CP size over the packs of ``loads``."""
    sums = ImageSums(cp_size, len(loads.images))
    sums.add(loads)
    return sums.balance()


def _rank_mean(total: np.ndarray, packs: int) -> list[float]:
    return [round(float(load) / max(packs, 1), RANK_MEAN_DIGITS) for load in total]

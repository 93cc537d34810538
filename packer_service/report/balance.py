"""The balance of layouts and image boundaries over packs, from the loads of each pack."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Float64, Int64

from packer_service.report.figures import Balances, ImageBalance, LayoutBalance, RankLoads, Spread
from packer_service.report.loads import Block, ImageLoadColumns, LayoutLoadColumns
from schemas.balance import LoadGroup, load_groups
from schemas.config import PackConfig

RANK_MEAN_DIGITS = 3
"""Decimals of a rank's mean load: loads are whole numbers, of which thousandths are more than enough."""


def balances(
    read: Callable[[LoadGroup], Iterable[Block]], tiles: Int64[np.ndarray, "packs"], config: PackConfig
) -> Balances:
    """The balance of everything that a configuration stores. One group's loads are in memory at a time.

    Args:
        read: the loads of a group for all packs, in blocks of packs.
        tiles: attention tiles of every pack in natural order, the floor of the critical paths.
        config: the configuration that the packs were made with.
    """
    balance: dict[str, dict[int, LayoutBalance]] = {}
    images: dict[int, ImageBalance] = {}
    cheapest: dict[int, Cheapest] = {}
    for group in load_groups(config):
        if group.scheme is None:
            images[group.degree] = image_balance(ImageLoadColumns.of(read(group), group.degree), group.degree)
            continue
        loads = LayoutLoadColumns.of(read(group), tiles, group.degree, config)
        balance.setdefault(group.scheme, {})[group.degree] = layout_balance(loads, group.scheme, group.degree)
        cheapest.setdefault(group.degree, Cheapest(len(tiles))).add(group.scheme, loads.cost)
    return Balances(
        balanced_packs=len(tiles),
        balance=balance,
        images=images,
        preferred={degree: cheapest[degree].counts() for degree in sorted(cheapest)},
    )


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
        preferred = [(scheme, count) for scheme, count in zip(self._schemes, counts, strict=True) if count]
        return dict(sorted(preferred, key=lambda entry: -entry[1]))


def layout_balance(loads: LayoutLoadColumns, layout: str, ring_degree: int) -> LayoutBalance:
    """One layout at one ring degree over the packs of ``loads``."""
    packs = len(loads.cost)
    return LayoutBalance(
        layout=layout,
        ring_degree=ring_degree,
        packs=packs,
        tile_floor=_mean(loads.tile_floor),
        gather_path=spread(loads.gather_path),
        ring_path=spread(loads.ring_path),
        traffic=spread(loads.traffic),
        gather_path_tiles=_mean(loads.gather_path_tiles),
        ring_path_tiles=_mean(loads.ring_path_tiles),
        attention=RankLoads(rank_mean=_rank_mean(loads.rank_attention, packs), imbalance=spread(loads.attention)),
        tiles=RankLoads(rank_mean=_rank_mean(loads.rank_tiles, packs), imbalance=spread(loads.tiles)),
        keys_fetched=_rank_mean(loads.rank_keys, packs),
        cost=_mean(loads.cost),
    )


def image_balance(loads: ImageLoadColumns, cp_size: int) -> ImageBalance:
    """The image boundaries of one CP size over the packs of ``loads``."""
    packs = len(loads.images)
    return ImageBalance(
        cp_size=cp_size,
        packs=packs,
        images=RankLoads(rank_mean=_rank_mean(loads.rank_images, packs), imbalance=spread(loads.images)),
        pooled_tokens=RankLoads(
            rank_mean=_rank_mean(loads.rank_pooled_tokens, packs), imbalance=spread(loads.pooled_tokens)
        ),
        image_load=RankLoads(rank_mean=_rank_mean(loads.rank_image_load, packs), imbalance=spread(loads.image_load)),
        weighted_imbalance=_ratio(loads.largest_load, loads.mean_load),
        excess=_ratio(loads.largest_load, loads.least_load),
    )


def _ratio(loads: Float64[np.ndarray, "packs"], of: Float64[np.ndarray, "packs"]) -> float | None:
    """Sum over sum: a pack counts by what it has to share, so that one with a single unit hardly counts."""
    whole = float(of.sum())
    return float(loads.sum()) / whole if whole else None


def spread(values: Float64[np.ndarray, "packs"]) -> Spread:
    """Mean, 95% and largest of the values that are not nan; the 95% is the least value that so many do not exceed."""
    real = values[~np.isnan(values)]
    if not len(real):
        return Spread(packs=0, mean=None, p95=None, max=None)
    at = -(-len(real) * 95 // 100) - 1
    return Spread(
        packs=len(real), mean=float(real.mean()), p95=float(np.partition(real, at)[at]), max=float(real.max())
    )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _rank_mean(total: np.ndarray, packs: int) -> list[float]:
    return [round(float(load) / max(packs, 1), RANK_MEAN_DIGITS) for load in total]

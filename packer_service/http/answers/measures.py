"""Summaries over packs: spreads, loads of ranks, histograms."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from packer_service.http.dataset.loads import ImageLoads, LayoutLoads, image_loads, layout_loads
from packer_service.http.dataset.reader import Dataset
from packer_service.http.models.balance import Chosen, ImageBalance, LayoutBalance
from packer_service.http.models.common import Histogram, RankLoads, Spread

MEASURES = ("attention", "gather", "ring", "traffic", "images", "pooled_tokens")
"""What packs and shards are compared by."""

BARS = 32
EVERY = slice(None)


def spread(values: Float64[np.ndarray, "packs"]) -> Spread:
    """Mean, 95% and largest of the values that are no nan; the 95% is the least value that so many do not exceed."""
    real = values[~np.isnan(values)]
    if not len(real):
        return Spread(packs=0, mean=None, p95=None, max=None)
    at = -(-len(real) * 95 // 100) - 1
    return Spread(
        packs=len(real), mean=float(real.mean()), p95=float(np.partition(real, at)[at]), max=float(real.max())
    )


def over(tiles: Int64[np.ndarray, "packs"], floors: Float64[np.ndarray, "packs"]) -> Float64[np.ndarray, "packs"]:
    """Paths as multiples of the tile floor; nan where no pair is allowed."""
    return np.divide(tiles, floors, out=np.full(len(tiles), np.nan), where=floors > 0)


def traffic(dataset: Dataset, keys: Int64[np.ndarray, "packs"], ring: int) -> Float64[np.ndarray, "packs"]:
    """Keys fetched over those that gathering everything moves."""
    share: Float64[np.ndarray, "packs"] = keys / (dataset.config.seq_len * max(ring - 1, 1))
    return share


def floors(dataset: Dataset, ring: int) -> Float64[np.ndarray, "packs"]:
    """Tile floor of every pack."""
    tiles: Float64[np.ndarray, "packs"] = dataset.numbers("packs.parquet", "attention_tiles") / ring
    return tiles


def measures(
    dataset: Dataset, chosen: Chosen, packs: Int64[np.ndarray, "packs"] | slice = EVERY
) -> dict[str, Float64[np.ndarray, "packs"]]:
    """What packs and shards are compared by, of some packs or every one; nan where a measure has no meaning."""
    loads = layout_loads(dataset, chosen.layout, chosen.ring)
    floor, images = floors(dataset, chosen.ring)[packs], image_loads(dataset, chosen.cp)
    return {
        "attention": loads.attention[packs],
        "gather": over(loads.gather_path[packs], floor),
        "ring": over(loads.ring_path[packs], floor),
        "traffic": traffic(dataset, loads.keys[packs], chosen.ring),
        "images": images.images[packs],
        "pooled_tokens": images.pooled_tokens[packs],
    }


def layout_balance(dataset: Dataset, layout: str, ring: int, packs: range | None) -> LayoutBalance:
    """One layout at one degree, over all packs or some."""
    if packs is not None:
        return _layout_balance(dataset, layout, ring, packs)
    key = ("layout_balance", layout, ring)
    return dataset.kept(key, lambda: _layout_balance(dataset, layout, ring, None), lambda _: 2000 + 200 * ring)


def _layout_balance(dataset: Dataset, layout: str, ring: int, packs: range | None) -> LayoutBalance:
    loads = layout_loads(dataset, layout, ring, packs)
    floor = floors(dataset, ring)
    if packs is not None:
        floor = floor[packs.start : packs.stop]
    return LayoutBalance(
        layout=layout,
        ring=ring,
        packs=len(floor),
        tile_floor=_mean(floor),
        gather=spread(over(loads.gather_path, floor)),
        ring_path=spread(over(loads.ring_path, floor)),
        traffic=spread(traffic(dataset, loads.keys, ring)),
        gather_tiles=_mean(loads.gather_path),
        ring_tiles=_mean(loads.ring_path),
        attention=RankLoads(rank_mean=_per_pack(loads.rank_attention, loads), imbalance=spread(loads.attention)),
        tiles=RankLoads(rank_mean=_per_pack(loads.rank_tiles, loads), imbalance=spread(loads.tiles)),
        keys_fetched=_per_pack(loads.rank_keys, loads),
        cost=_mean(loads.cost),
    )


def image_balance(dataset: Dataset, size: int, packs: range | None) -> ImageBalance:
    """The image boundaries of one CP size, over all packs or some."""
    if packs is not None:
        return _image_balance(dataset, size, packs)
    key = ("image_balance", size)
    return dataset.kept(key, lambda: _image_balance(dataset, size, None), lambda _: 1000 + 100 * size)


def _image_balance(dataset: Dataset, size: int, packs: range | None) -> ImageBalance:
    loads = image_loads(dataset, size, packs)
    return ImageBalance(
        cp=size,
        packs=len(loads.images),
        images=RankLoads(rank_mean=_per_pack(loads.rank_images, loads), imbalance=spread(loads.images)),
        pooled_tokens=RankLoads(
            rank_mean=_per_pack(loads.rank_pooled_tokens, loads), imbalance=spread(loads.pooled_tokens)
        ),
    )


def histogram(values: np.ndarray, unit: str) -> Histogram:
    """Bars of equal width over the values' range; of whole numbers, at least one wide."""
    if not len(values):
        return Histogram(unit=unit, edges=[0, 1], counts=[0])
    low, high = values.min(), values.max()
    if np.issubdtype(values.dtype, np.integer):
        width = max(-(-int(high - low + 1) // BARS), 1)
        edges = np.arange(int(low), int(high) + width + 1, width)[: -(-int(high - low + 1) // width) + 1]
    else:
        edges = np.linspace(low, high if high > low else low + 1, BARS + 1)
    counts, _ = np.histogram(values, edges)
    return Histogram(unit=unit, edges=edges.tolist(), counts=counts.tolist())


def doubling_histogram(values: Int64[np.ndarray, "values"], unit: str) -> Histogram:
    """Bars that double in width: for lengths, of which some are a thousand times others."""
    top = int(values.max(initial=0)).bit_length()
    edges = [0, *(1 << power for power in range(top + 1))]
    counts, _ = np.histogram(values, edges)
    return Histogram(unit=unit, edges=edges, counts=counts.tolist())


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _per_pack(total: Int64[np.ndarray, "ranks"], loads: LayoutLoads | ImageLoads) -> list[float]:
    packs = len(loads.attention) if isinstance(loads, LayoutLoads) else len(loads.images)
    return [round(float(load) / max(packs, 1), 3) for load in total]

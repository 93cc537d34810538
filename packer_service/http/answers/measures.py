"""What packs and shards are compared by, and the balance of layouts and images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from preshard.packer_service.http.dataset.loads import image_loads, layout_loads
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.models.balance import MEASURES, Chosen
from preshard.packer_service.report import balance
from preshard.packer_service.report.loads import ImageLoadColumns, LayoutLoadColumns
from preshard.packer_service.report.records import ImageBalance, LayoutBalance

EVERY = slice(None)

LAYOUT_MEASURES = ("attention", "gather_path", "ring_path", "traffic")
"""Measures of a layout at a ring degree."""

IMAGE_MEASURES = ("images", "pooled_tokens", "image_load")
"""Measures of the image boundaries of a CP size."""


def measure(dataset: Dataset, name: str, chosen: Chosen) -> Float64[np.ndarray, "packs"]:
    """The values of one measure for all packs; nan where it has no meaning."""
    stored = dataset.derived.values(measure_name(name, chosen)) if dataset.derived else None
    if stored is not None and len(stored) == dataset.n_packs:
        return stored
    loads: LayoutLoadColumns | ImageLoadColumns
    if name in LAYOUT_MEASURES:
        loads = layout_loads(dataset, chosen.layout, chosen.ring_degree)
    else:
        loads = image_loads(dataset, chosen.cp_size)
    values: Float64[np.ndarray, "packs"] = getattr(loads, name)
    return values


def measure_name(name: str, chosen: Chosen) -> str:
    """What the values of a measure are called among those that are derived."""
    return f"{name}-{chosen.layout}-{chosen.ring_degree}" if name in LAYOUT_MEASURES else f"{name}-{chosen.cp_size}"


def shard_means(dataset: Dataset, name: str, chosen: Chosen) -> Float64[np.ndarray, "shards"]:
    """The mean of a measure over the packs of each shard that have a value; nan where none has."""
    stored = dataset.derived.values(shard_means_name(measure_name(name, chosen))) if dataset.derived else None
    if stored is not None and len(stored) == len(dataset.shards):
        return stored
    return means_of_shards(measure(dataset, name, chosen), dataset.shards.first_packs)


def shard_means_name(measured: str) -> str:
    """What the means of the values of that name are called."""
    return f"shard-{measured}"


def means_of_shards(
    values: Float64[np.ndarray, "packs"], edges: Int64[np.ndarray, "shards"]
) -> Float64[np.ndarray, "shards"]:
    """Means of the packs of each shard that have a value, where shards begin at the edges."""
    if not len(edges):
        return np.zeros(0)
    real = ~np.isnan(values)
    totals, counts = np.add.reduceat(np.where(real, values, 0.0), edges), np.add.reduceat(real.astype(np.int64), edges)
    means: Float64[np.ndarray, "shards"] = np.divide(totals, counts, out=np.full(len(edges), np.nan), where=counts > 0)
    return means


def measures(
    dataset: Dataset, chosen: Chosen, packs: Int64[np.ndarray, "packs"] | slice = EVERY
) -> dict[str, Float64[np.ndarray, "packs"]]:
    """The values of each of ``MEASURES`` for some or all packs; nan where a measure has no meaning."""
    return {name: measure(dataset, name, chosen)[packs] for name in MEASURES}


def layout_balance(dataset: Dataset, layout: str, ring_degree: int, packs: range | None) -> LayoutBalance:
    """One layout at one ring degree, over all packs or some."""

    def computed() -> LayoutBalance:
        return balance.layout_balance(layout_loads(dataset, layout, ring_degree, packs), layout, ring_degree)

    if packs is not None:
        return computed()
    return dataset.figures(layout_figures(layout, ring_degree), LayoutBalance.model_validate, computed)


def preferred(dataset: Dataset, layouts: Sequence[str], ring_degree: int, packs: range | None) -> dict[str, int]:
    """How many packs the cost model prefers each of some layouts for, at a ring degree."""

    def counted() -> dict[str, int]:
        cheapest = balance.Cheapest(dataset.n_packs if packs is None else len(packs))
        for layout in layouts:
            cheapest.add(layout, layout_loads(dataset, layout, ring_degree, packs).cost)
        return cheapest.counts()

    return counted() if packs is not None else dataset.figures(preferred_figures(layouts, ring_degree), dict, counted)


def image_balance(dataset: Dataset, cp_size: int, packs: range | None) -> ImageBalance:
    """The image boundaries of one CP size, over all packs or some."""

    def computed() -> ImageBalance:
        return balance.image_balance(image_loads(dataset, cp_size, packs), cp_size)

    if packs is not None:
        return computed()
    return dataset.figures(image_figures(cp_size), ImageBalance.model_validate, computed)


def layout_figures(layout: str, ring_degree: int) -> str:
    """What the balance of a layout is called among the figures that are derived."""
    return f"layout-{layout}-{ring_degree}"


def image_figures(cp_size: int) -> str:
    """The same of the images of a CP size."""
    return f"images-{cp_size}"


def preferred_figures(layouts: Sequence[str], ring_degree: int) -> str:
    """The same of which layout the cost model prefers."""
    return f"preferred-{'-'.join(layouts)}-{ring_degree}"

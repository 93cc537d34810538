"""What packs and shards are compared by, and the balance of layouts and images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from packer_service.http.dataset.cache import size_of
from packer_service.http.dataset.loads import image_loads, layout_loads
from packer_service.http.dataset.reader import Dataset
from packer_service.http.models.balance import Chosen
from packer_service.report import balance
from packer_service.report.figures import ImageBalance, LayoutBalance

EVERY = slice(None)


def measures(
    dataset: Dataset, chosen: Chosen, packs: Int64[np.ndarray, "packs"] | slice = EVERY
) -> dict[str, Float64[np.ndarray, "packs"]]:
    """The values of each of ``MEASURES`` for some or all packs; nan where a measure has no meaning."""
    loads = layout_loads(dataset, chosen.layout, chosen.ring_degree).some(packs)
    images = image_loads(dataset, chosen.cp_size)
    return {
        "attention": loads.attention,
        "gather_path": loads.gather_path,
        "ring_path": loads.ring_path,
        "traffic": loads.traffic,
        "images": images.images[packs],
        "pooled_tokens": images.pooled_tokens[packs],
        "image_load": images.image_load[packs],
    }


def layout_balance(dataset: Dataset, layout: str, ring_degree: int, packs: range | None) -> LayoutBalance:
    """One layout at one ring degree, over all packs or some."""

    def computed() -> LayoutBalance:
        return balance.layout_balance(layout_loads(dataset, layout, ring_degree, packs), layout, ring_degree)

    return computed() if packs is not None else dataset.kept(("layout", layout, ring_degree), computed, size_of)


def preferred(dataset: Dataset, layouts: Sequence[str], ring_degree: int, packs: range | None) -> dict[str, int]:
    """How many packs the cost model prefers each of some layouts for, at a ring degree."""

    def counted() -> dict[str, int]:
        cheapest = balance.Cheapest(dataset.n_packs if packs is None else len(packs))
        for layout in layouts:
            cheapest.add(layout, layout_loads(dataset, layout, ring_degree, packs).cost)
        return cheapest.counts()

    return counted() if packs is not None else dataset.kept(("preferred", *layouts, ring_degree), counted, size_of)


def image_balance(dataset: Dataset, cp_size: int, packs: range | None) -> ImageBalance:
    """The image boundaries of one CP size, over all packs or some."""

    def computed() -> ImageBalance:
        return balance.image_balance(image_loads(dataset, cp_size, packs), cp_size)

    return computed() if packs is not None else dataset.kept(("images", cp_size), computed, size_of)

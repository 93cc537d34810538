"""Loads of ranks, pack by pack, from ``balance.parquet``: of one layout's rows, for a question about that layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64

from packer_service.http.dataset.reader import Dataset, numbers_of
from packer_service.layout.cost import gather_cost, key_weight, ring_cost
from packer_service.packs.balance import IMAGE_KINDS, LAYOUT_KINDS
from schemas.balance import LoadGroup, Stretch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayoutLoads:
    """What one layout does to every pack, from the first pack asked for on. Imbalances are nan without any load.

    ``rank_*`` are sums over packs.
    """

    attention: Float64[np.ndarray, "packs"]
    tiles: Float64[np.ndarray, "packs"]
    gather_path: Int64[np.ndarray, "packs"]
    ring_path: Int64[np.ndarray, "packs"]
    keys: Int64[np.ndarray, "packs"]
    cost: Float64[np.ndarray, "packs"]
    rank_attention: Int64[np.ndarray, "ranks"]
    rank_tiles: Int64[np.ndarray, "ranks"]
    rank_keys: Int64[np.ndarray, "ranks"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ImageLoads:
    """What the image boundaries of one CP size do to every pack."""

    images: Float64[np.ndarray, "packs"]
    pooled_tokens: Float64[np.ndarray, "packs"]
    rank_images: Int64[np.ndarray, "ranks"]
    rank_pooled_tokens: Int64[np.ndarray, "ranks"]


Loads = LayoutLoads | ImageLoads


def layout_loads(dataset: Dataset, scheme: str, degree: int, packs: range | None = None) -> LayoutLoads:
    """Loads of a stored layout: of all packs, kept, or of some."""
    group = LoadGroup(scheme=scheme, degree=degree)
    if packs is not None:
        return _layout(dataset, group, packs)
    every = range(dataset.n_packs)
    return dataset.kept(("loads", group), lambda: _layout(dataset, group, every), _size)


def image_loads(dataset: Dataset, size: int, packs: range | None = None) -> ImageLoads:
    """Loads of the image boundaries of a CP size: of all packs, kept, or of some."""
    group = LoadGroup(scheme=None, degree=size)
    if packs is not None:
        return _images(dataset, group, packs)
    every = range(dataset.n_packs)
    return dataset.kept(("loads", group), lambda: _images(dataset, group, every), _size)


def _size(loads: Loads) -> int:
    return sum(getattr(loads, field.name).nbytes for field in fields(loads))


def _layout(dataset: Dataset, group: LoadGroup, packs: range) -> LayoutLoads:
    parts = [_reduced(dataset, group, loads) for loads in read_loads(dataset, group, packs)]
    sums = {"rank_attention", "rank_tiles", "rank_keys"}
    return LayoutLoads(**_joined(parts, [field.name for field in fields(LayoutLoads)], sums, group.degree))


def _reduced(
    dataset: Dataset, group: LoadGroup, loads: Int64[np.ndarray, "kinds ranks packs"]
) -> dict[str, np.ndarray]:
    attention, tiles, steps, keys = loads
    slice_tokens, weight = dataset.config.seq_len // group.degree, key_weight(dataset.config.cost)
    gather_path, ring_path = tiles.max(axis=0), steps.sum(axis=0)
    ring = ring_cost(ring_path, slice_tokens, group.degree, weight)
    return {
        "attention": imbalances(attention),
        "tiles": imbalances(tiles),
        "gather_path": gather_path,
        "ring_path": ring_path,
        "keys": keys.sum(axis=0),
        "cost": np.minimum(ring, gather_cost(gather_path, keys.max(axis=0), weight)),
        "rank_attention": attention.sum(axis=1),
        "rank_tiles": tiles.sum(axis=1),
        "rank_keys": keys.sum(axis=1),
    }


def _images(dataset: Dataset, group: LoadGroup, packs: range) -> ImageLoads:
    parts = [
        {
            "images": imbalances(images),
            "pooled_tokens": imbalances(pooled),
            "rank_images": images.sum(axis=1),
            "rank_pooled_tokens": pooled.sum(axis=1),
        }
        for images, pooled in read_loads(dataset, group, packs)
    ]
    sums = {"rank_images", "rank_pooled_tokens"}
    return ImageLoads(**_joined(parts, [field.name for field in fields(ImageLoads)], sums, group.degree))


def _joined(parts: list[dict[str, np.ndarray]], names: list[str], sums: set[str], degree: int) -> dict[str, np.ndarray]:
    if not parts:
        return {name: np.zeros(degree if name in sums else 0, np.int64) for name in names}
    return {
        name: np.sum([part[name] for part in parts], axis=0)
        if name in sums
        else np.concatenate([part[name] for part in parts])
        for name in names
    }


def imbalances(loads: Int64[np.ndarray, "ranks packs"]) -> Float64[np.ndarray, "packs"]:
    """Largest load over mean load of each pack; nan where there is nothing to share."""
    means = loads.sum(axis=0) / len(loads)
    nothing: Float64[np.ndarray, "packs"] = np.full(loads.shape[1], np.nan)
    return np.divide(loads.max(axis=0), means, out=nothing, where=means > 0)


def read_loads(dataset: Dataset, group: LoadGroup, packs: range) -> Iterator[Int64[np.ndarray, "kinds ranks packs"]]:
    """The loads of a group for consecutive packs, a block of packs at a time.

    Kinds are those of ``balance.LAYOUT_KINDS`` or ``IMAGE_KINDS``. Packs are the last axis, over which NumPy is fast.
    """
    kinds = len(LAYOUT_KINDS if group.scheme else IMAGE_KINDS)
    with dataset.parquet("balance.parquet") as file:
        edges = _row_group_edges(file)
        for stretch in dataset.order.stretches():
            first, end = max(packs.start, stretch.first_pack), min(packs.stop, stretch.first_pack + stretch.packs)
            if stretch.group != group or first >= end:
                continue
            loads = _rows(file, edges, stretch).reshape(kinds, stretch.packs, group.degree)
            wanted = loads[:, first - stretch.first_pack : end - stretch.first_pack]
            yield np.ascontiguousarray(wanted.transpose(0, 2, 1))


def _row_group_edges(file: pq.ParquetFile) -> Int64[np.ndarray, "row_groups_plus_1"]:
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    return np.cumsum([0, *sizes])


def _rows(
    file: pq.ParquetFile, edges: Int64[np.ndarray, "row_groups_plus_1"], stretch: Stretch
) -> Int64[np.ndarray, "rows"]:
    """The loads of a stretch, from the row groups that it lies in: from one, as the writer makes them."""
    first = int(np.searchsorted(edges, stretch.first_row, side="right")) - 1
    last = int(np.searchsorted(edges, stretch.first_row + stretch.rows, side="left"))
    column = file.read_row_groups(range(first, last), columns=["load"]).column("load")
    start = stretch.first_row - int(edges[first])
    loads: Int64[np.ndarray, "rows"] = numbers_of(column.slice(start, stretch.rows))
    return loads

"""Loads of ranks, pack by pack, from ``balance.parquet``: of one layout's rows, for a question about that layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64

from packer_service.balance import IMAGE_KINDS, LAYOUT_KINDS
from packer_service.balance_order import LoadGroup, Stretch
from packer_service.http.dataset import Dataset
from packer_service.layout.cost import gather_cost, ring_cost


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
    dataset: Dataset, group: LoadGroup, loads: Int64[np.ndarray, "kinds packs ranks"]
) -> dict[str, np.ndarray]:
    attention, tiles, steps, keys = loads
    slice_tokens, weight = dataset.config.seq_len // group.degree, dataset.config.key_weight
    gather_path, ring_path = tiles.max(axis=1), steps.sum(axis=1)
    ring = ring_cost(ring_path, slice_tokens, group.degree, weight)
    return {
        "attention": imbalances(attention),
        "tiles": imbalances(tiles),
        "gather_path": gather_path,
        "ring_path": ring_path,
        "keys": keys.sum(axis=1),
        "cost": np.minimum(ring, gather_cost(gather_path, keys.max(axis=1), weight)),
        "rank_attention": attention.sum(axis=0),
        "rank_tiles": tiles.sum(axis=0),
        "rank_keys": keys.sum(axis=0),
    }


def _images(dataset: Dataset, group: LoadGroup, packs: range) -> ImageLoads:
    parts = [
        {
            "images": imbalances(images),
            "pooled_tokens": imbalances(pooled),
            "rank_images": images.sum(axis=0),
            "rank_pooled_tokens": pooled.sum(axis=0),
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


def imbalances(loads: Int64[np.ndarray, "packs ranks"]) -> Float64[np.ndarray, "packs"]:
    """Largest load over mean load of each pack; nan where there is nothing to share."""
    total = loads.sum(axis=1)
    values: Float64[np.ndarray, "packs"] = np.full(len(loads), np.nan)
    some = total > 0
    values[some] = loads[some].max(axis=1, initial=0) / (total[some] / loads.shape[1])
    return values


def read_loads(dataset: Dataset, group: LoadGroup, packs: range) -> Iterator[Int64[np.ndarray, "kinds packs ranks"]]:
    """The loads of a group for consecutive packs, a block of packs at a time.

    Kinds are those of ``balance.LAYOUT_KINDS`` or ``IMAGE_KINDS``.
    """
    kinds = len(LAYOUT_KINDS if group.scheme else IMAGE_KINDS)
    with dataset.parquet("balance.parquet") as file:
        edges = _row_group_edges(file)
        for stretch in dataset.order.stretches():
            first, end = max(packs.start, stretch.first_pack), min(packs.stop, stretch.first_pack + stretch.packs)
            if stretch.group != group or first >= end:
                continue
            loads = _rows(file, edges, stretch).reshape(kinds, stretch.packs, group.degree)
            yield loads[:, first - stretch.first_pack : end - stretch.first_pack]


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
    loads: Int64[np.ndarray, "rows"] = column.slice(start, stretch.rows).to_numpy()
    return loads

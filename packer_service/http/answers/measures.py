"""Measures to compare packs and shards by, and the balance of layouts and images: questions to ``measures.parquet``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from preshard.packer_service.http.answers.choice import ranked
from preshard.packer_service.http.dataset.cache import size_of
from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.models.balance import Chosen
from preshard.packer_service.report import measures
from preshard.packer_service.report.figures import MEASURED, Figure
from preshard.packer_service.report.records import ImageBalance, LayoutBalance, Spread
from preshard.schemas.dataset.measures import MeasureGroup
from preshard.schemas.manifest import ShardEntry


def group_of(figure: Figure, chosen: Chosen) -> MeasureGroup:
    """The rows that have a figure at a choice of layout and degrees."""
    if figure.of == "layout":
        return MeasureGroup(scheme=chosen.layout, degree=chosen.ring_degree)
    return MeasureGroup(scheme=None, degree=chosen.cp_size)


def measure_values(
    dataset: ServedDataset, key: str, chosen: Chosen, packs: range | None = None
) -> Float64[np.ndarray, "packs"]:
    """The value of a measure in each pack, nan where it has none; those of all packs are kept."""
    group = group_of(MEASURED[key], chosen)

    def asked() -> Float64[np.ndarray, "packs"]:
        with dataset.measures() as rows:
            own = range(dataset.n_packs) if packs is None else packs
            return measures.figure_values(rows, group, [MEASURED[key]], own)[key]

    return asked() if packs is not None else dataset.kept(("values", key, group), asked, size_of)


def pack_measures(
    dataset: ServedDataset, chosen: Chosen, packs: Int64[np.ndarray, "packs"]
) -> dict[str, list[float | None]]:
    """The value of every measure in each of some packs, in their order."""
    ascending, places = np.unique(packs, return_inverse=True)
    found: dict[str, list[float | None]] = {}
    with dataset.measures() as rows:
        for figures in _by_kind():
            group = group_of(figures[0], chosen)
            for key, values in measures.figure_values(rows, group, figures, ascending.tolist()).items():
                found[key] = [None if np.isnan(value) else value for value in values[places].tolist()]
    return found


def layout_figures(dataset: ServedDataset, chosen: Chosen, pack: int) -> dict[str, float | None]:
    """The value of every measure of layouts in one pack."""
    found = pack_measures(dataset, chosen, np.array([pack]))
    return {key: value for key, [value] in found.items() if MEASURED[key].of == "layout"}


def shard_spreads(dataset: ServedDataset, chosen: Chosen, shards: Sequence[int]) -> dict[int, dict[str, Spread]]:
    """The spread of every measure over the packs of each of some shards, by the shard's number."""
    found: dict[int, dict[str, Spread]] = {shard: {} for shard in shards}
    each = dataset.config.packs_per_shard
    packs = [pack for shard in sorted(shards) for pack in packs_of(dataset.shards[shard])]
    with dataset.measures() as rows:
        for figures in _by_kind():
            spreads = measures.shard_spreads(rows, group_of(figures[0], chosen), figures, packs, each)
            for shard, of_shard in spreads.items():
                found[shard] |= {figure.key: spread for figure, spread in zip(figures, of_shard, strict=True)}
    return found


def packs_of(shard: ShardEntry) -> range:
    """The packs that a shard holds."""
    return range(shard.first_pack, shard.first_pack + shard.packs)


def means_of_shards(dataset: ServedDataset, values: Float64[np.ndarray, "packs"]) -> Float64[np.ndarray, "shards"]:
    """The mean over the packs of each shard that have a value; nan where none has."""
    edges = dataset.shards.first_packs
    if not len(edges):
        return np.zeros(0)
    has = ~np.isnan(values)
    sums, counts = np.add.reduceat(np.where(has, values, 0.0), edges), np.add.reduceat(has.astype(np.int64), edges)
    return np.where(counts, sums / np.maximum(counts, 1), np.nan)


def worst_packs(dataset: ServedDataset, key: str, chosen: Chosen, packs: range, most: int) -> list[tuple[int, float]]:
    """The packs that are worst by a measure, the worst first, each with its value; none without a value."""
    values = measure_values(dataset, key, chosen, packs)
    order = ranked(values, slice(0, most), descending=True)
    return [(packs[at], float(values[at])) for at in order.tolist() if not np.isnan(values[at])]


def worst_of_shards(
    dataset: ServedDataset, key: str, chosen: Chosen, shards: Sequence[int]
) -> dict[int, tuple[int, float]]:
    """The pack that is worst by a measure in each of some shards, the first of equal ones, with its value."""
    values, found = measure_values(dataset, key, chosen), dict[int, tuple[int, float]]()
    for shard in shards:
        packs = packs_of(dataset.shards[shard])
        own = values[packs.start : packs.stop]
        if not np.isnan(own).all():
            at = int(np.nanargmax(own))
            found[shard] = packs[at], float(own[at])
    return found


def _by_kind() -> list[list[Figure]]:
    """The measures of layouts, and those of images."""
    return [[figure for figure in MEASURED.values() if figure.of == kind] for kind in ("layout", "images")]


def layout_balance(dataset: ServedDataset, layout: str, ring_degree: int, packs: range | None) -> LayoutBalance:
    """One layout at one ring degree, as it is stored of all packs, or over some."""
    if packs is None:
        return dataset.figures.balance[layout][ring_degree]
    with dataset.measures() as rows:
        return measures.layout_balance(rows, MeasureGroup(scheme=layout, degree=ring_degree), packs)


def image_balance(dataset: ServedDataset, cp_size: int, packs: range | None) -> ImageBalance:
    """The image boundaries of one CP size, as they are stored of all packs, or over some."""
    if packs is None:
        return dataset.figures.images[cp_size]
    with dataset.measures() as rows:
        return measures.image_balance(rows, MeasureGroup(scheme=None, degree=cp_size), packs)


def preferred(
    dataset: ServedDataset, layouts: Sequence[str], degrees: Sequence[int], packs: range | None
) -> dict[int, dict[str, int]]:
    """Number of packs for which the cost model prefers each layout, by ring degree: of all layouts, or of one."""
    if len(layouts) == 1:
        n_packs = dataset.n_packs if packs is None else len(packs)
        return {degree: {layouts[0]: n_packs} if n_packs else {} for degree in degrees}
    if packs is None:
        return {degree: dataset.figures.preferred[degree] for degree in degrees}
    with dataset.measures() as rows:
        return measures.preferred(rows, layouts, degrees, packs)

"""What packs and shards are compared by, and the balance of layouts and images: questions to ``measures.parquet``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from preshard.packer_service.http.dataset.cache import size_of
from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.models.balance import Chosen
from preshard.packer_service.report import measures
from preshard.packer_service.report.figures import MEASURED, Figure
from preshard.packer_service.report.measures import GroupQuestion
from preshard.packer_service.report.records import Balances, ImageBalance, LayoutBalance, Spread
from preshard.schemas.dataset.measures import MeasureGroup

T = TypeVar("T")


def group_of(figure: Figure, chosen: Chosen) -> MeasureGroup:
    """The rows that have a figure at a choice of layout and degrees."""
    if figure.of == "layout":
        return MeasureGroup(scheme=chosen.layout, degree=chosen.ring_degree)
    return MeasureGroup(scheme=None, degree=chosen.cp_size)


@contextmanager
def asking(
    dataset: ServedDataset, figure: Figure, chosen: Chosen, packs: range | None = None
) -> Iterator[GroupQuestion]:
    """The rows that have a figure, of all packs or some."""
    with dataset.measures() as rows:
        every = range(dataset.n_packs) if packs is None else packs
        yield GroupQuestion(measures=rows, group=group_of(figure, chosen), packs=every)


def pack_measures(dataset: ServedDataset, chosen: Chosen, packs: Sequence[int]) -> dict[str, list[float | None]]:
    """The value of every measure in each of some packs, in their order."""
    found: dict[str, list[float | None]] = {}
    with dataset.measures() as rows:
        for figures in _by_kind():
            values = measures.pack_values(rows, group_of(figures[0], chosen), figures, packs)
            found |= {figure.key: [values[pack][at] for pack in packs] for at, figure in enumerate(figures)}
    return found


def layout_figures(dataset: ServedDataset, chosen: Chosen, pack: int) -> dict[str, float | None]:
    """The value of every measure of layouts in one pack."""
    figures, _ = _by_kind()
    with dataset.measures() as rows:
        values = measures.pack_values(rows, group_of(figures[0], chosen), figures, [pack])[pack]
    return {figure.key: value for figure, value in zip(figures, values, strict=True)}


def shard_spreads(dataset: ServedDataset, chosen: Chosen, shards: Sequence[int]) -> dict[int, dict[str, Spread]]:
    """The spread of every measure over the packs of each of some shards, by the shard's number."""
    found: dict[int, dict[str, Spread]] = {shard: {} for shard in shards}
    for figures in _by_kind():
        with asking(dataset, figures[0], chosen) as question:
            spreads = measures.shard_spreads(question, figures, dataset.config.packs_per_shard, shards)
        for shard, of_shard in spreads.items():
            found[shard] |= {figure.key: spread for figure, spread in zip(figures, of_shard, strict=True)}
    return found


def shard_means(dataset: ServedDataset, key: str, chosen: Chosen) -> np.ndarray:
    """The mean of a measure over the packs of each shard that have a value; nan where none has."""

    def asked() -> np.ndarray:
        with asking(dataset, MEASURED[key], chosen) as question:
            found = measures.shard_means(question, MEASURED[key], dataset.config.packs_per_shard)
        return np.array([found.get(shard, np.nan) for shard in range(len(dataset.shards))], np.float64)

    return dataset.kept(("shard_means", key, group_of(MEASURED[key], chosen)), asked, size_of)


def worst_packs(dataset: ServedDataset, key: str, chosen: Chosen, packs: range, most: int) -> list[tuple[int, float]]:
    """The packs that are worst by a measure, the worst first, each with its value; none without a value."""
    figure = MEASURED[key]
    with asking(dataset, figure, chosen, packs) as question:
        order = measures.ranked_packs(question, figure, slice(0, most), descending=True)
        values = measures.pack_values(question.measures, question.group, [figure], order)
    found = [(pack, values[pack][0]) for pack in order]
    return [(pack, value) for pack, value in found if value is not None]


def worst_of_shards(
    dataset: ServedDataset, key: str, chosen: Chosen, shards: Sequence[int]
) -> dict[int, tuple[int, float]]:
    """The pack that is worst by a measure in each of some shards, with its value; none without a value."""
    with asking(dataset, MEASURED[key], chosen) as question:
        return measures.worst_of_shards(question, MEASURED[key], dataset.config.packs_per_shard, shards)


def _by_kind() -> list[list[Figure]]:
    """The measures of layouts, and those of images."""
    return [[figure for figure in MEASURED.values() if figure.of == kind] for kind in ("layout", "images")]


def layout_balance(dataset: ServedDataset, layout: str, ring_degree: int, packs: range | None) -> LayoutBalance:
    """One layout at one ring degree, over all packs or some."""
    return _asked(dataset, packs, measures.layout_balance, MeasureGroup(scheme=layout, degree=ring_degree))


def image_balance(dataset: ServedDataset, cp_size: int, packs: range | None) -> ImageBalance:
    """The image boundaries of one CP size, over all packs or some."""
    return _asked(dataset, packs, measures.image_balance, MeasureGroup(scheme=None, degree=cp_size))


def preferred(dataset: ServedDataset, layouts: Sequence[str], ring_degree: int, packs: range | None) -> dict[str, int]:
    """How many packs the cost model prefers each of some layouts for, at a ring degree."""
    return _asked(dataset, packs, measures.preferred, tuple(layouts), ring_degree)


def _asked(dataset: ServedDataset, packs: range | None, question: Callable[..., T], *about: Any) -> T:
    """The answer of a function to something about all packs, which is kept, or about some."""

    def ask() -> T:
        with dataset.measures() as rows:
            return question(rows, *about, packs)

    return ask() if packs is not None else dataset.kept((question.__name__, *about), ask, size_of)


def all_balances(dataset: ServedDataset) -> Balances:
    """The balance of everything that is stored."""
    config = dataset.config
    degrees = sorted(config.ring_degrees)
    return Balances(
        balanced_packs=dataset.n_packs,
        balance={
            scheme: {degree: layout_balance(dataset, scheme, degree, None) for degree in degrees}
            for scheme in config.layouts
        },
        images={size: image_balance(dataset, size, None) for size in sorted(config.cp_sizes)},
        preferred={},
    )

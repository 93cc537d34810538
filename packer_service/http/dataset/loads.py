"""Loads of ranks, pack by pack: of one layout or CP size, of all packs or some."""

from __future__ import annotations

from preshard.packer_service.http.dataset.cache import size_of
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.report.loads import ImageLoadColumns, LayoutLoadColumns, StoredLoads
from preshard.schemas.balance import LoadGroup


def layout_loads(dataset: Dataset, layout: str, ring_degree: int, packs: range | None = None) -> LayoutLoadColumns:
    """Loads of a stored layout: of all packs, kept, or of some."""
    if packs is not None:
        return _layout(dataset, layout, ring_degree, packs)
    every, key = range(dataset.n_packs), ("layout_loads", layout, ring_degree)
    return dataset.kept(key, lambda: _layout(dataset, layout, ring_degree, every), size_of)


def image_loads(dataset: Dataset, cp_size: int, packs: range | None = None) -> ImageLoadColumns:
    """Loads of the image boundaries of a CP size: of all packs, kept, or of some."""
    if packs is not None:
        return _images(dataset, cp_size, packs)
    every = range(dataset.n_packs)
    return dataset.kept(("image_loads", cp_size), lambda: _images(dataset, cp_size, every), size_of)


def _layout(dataset: Dataset, layout: str, ring_degree: int, packs: range) -> LayoutLoadColumns:
    tiles = dataset.numbers("packs.parquet", "attention_tiles")[packs.start : packs.stop]
    group = LoadGroup(scheme=layout, degree=ring_degree)
    with dataset.parquet("balance.parquet") as file:
        blocks = StoredLoads(file, dataset.order).read(group, packs)
        return LayoutLoadColumns.of(blocks, tiles, ring_degree, dataset.config)


def _images(dataset: Dataset, cp_size: int, packs: range) -> ImageLoadColumns:
    group = LoadGroup(scheme=None, degree=cp_size)
    with dataset.parquet("balance.parquet") as file:
        return ImageLoadColumns.of(StoredLoads(file, dataset.order).read(group, packs), cp_size)

"""What the loads of ``balance.parquet`` say of each pack, computed a block of packs at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64

from preshard.packer_service.layout.measures import gather_cost, key_weight, ring_cost
from preshard.schemas.balance import IMAGE_KINDS, BalanceOrder, LoadGroup, Stretch
from preshard.schemas.config import PackConfig
from preshard.schemas.tables import row_group_edges

Block = Int64[np.ndarray, "kinds ranks packs"]
"""Loads of a group for consecutive packs. Packs are the last axis, over which NumPy is fast."""

Packs = Int64[np.ndarray, "some"] | slice


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayoutLoadColumns:
    """What one layout does to each of some packs.

    Attributes:
        attention: imbalance of allowed pairs, nan in a pack without any.
        tiles: imbalance of tiles, nan in a pack without any.
        tile_floor: tiles of the whole mask over the ring degree.
        gather_path_tiles: gather critical path.
        ring_path_tiles: ring critical path.
        traffic: keys needed but not held, over those that gathering everything moves.
        cost: modelled cost of the better of gather and ring attention, in tiles.
        rank_attention: allowed pairs of each rank, summed over packs.
        rank_tiles: tiles of each rank, summed over packs.
        rank_keys: keys that each rank needs but does not hold, summed over packs.
    """

    attention: Float64[np.ndarray, "packs"]
    tiles: Float64[np.ndarray, "packs"]
    tile_floor: Float64[np.ndarray, "packs"]
    gather_path_tiles: Int64[np.ndarray, "packs"]
    ring_path_tiles: Int64[np.ndarray, "packs"]
    traffic: Float64[np.ndarray, "packs"]
    cost: Float64[np.ndarray, "packs"]
    rank_attention: Int64[np.ndarray, "ranks"]
    rank_tiles: Int64[np.ndarray, "ranks"]
    rank_keys: Int64[np.ndarray, "ranks"]

    @property
    def gather_path(self) -> Float64[np.ndarray, "packs"]:
        """Gather critical path as a multiple of the tile floor; nan where no pair is allowed."""
        return _multiples(self.gather_path_tiles, self.tile_floor)

    @property
    def ring_path(self) -> Float64[np.ndarray, "packs"]:
        """Ring critical path as a multiple of the tile floor; nan where no pair is allowed."""
        return _multiples(self.ring_path_tiles, self.tile_floor)

    @classmethod
    def of(
        cls, blocks: Iterable[Block], tiles: Int64[np.ndarray, "packs"], ring_degree: int, config: PackConfig
    ) -> LayoutLoadColumns:
        """The loads of a layout at a ring degree.

        Args:
            blocks: loads by ``LAYOUT_KINDS``, ring rank and pack, in order of packs.
            tiles: attention tiles of the same packs in natural order.
            ring_degree: the ring degree.
            config: the dataset's configuration.
        """
        parts: list[LayoutLoadColumns] = []
        first = 0
        for block in blocks:
            end = first + block.shape[2]
            parts.append(_layout_of(block, tiles[first:end], ring_degree, config))
            first = end
        return _joined(parts or [_empty_layout(ring_degree)])

    def some(self, packs: Packs) -> LayoutLoadColumns:
        """The same of some packs; sums over packs stay those of all."""
        return replace(self, **{name: getattr(self, name)[packs] for name in _per_pack(self)})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ImageLoadColumns:
    """What the image boundaries of one CP size do to each of some packs.

    Attributes:
        images: imbalance of crops, nan in a pack without any.
        pooled_tokens: imbalance of pooled rows, nan in a pack without any.
        image_load: imbalance of the encoder's work, nan in a pack without any.
        largest_load: the largest work of a rank.
        mean_load: the mean work of a rank.
        least_load: the least possible largest work of a rank.
        rank_images: crops of each rank, summed over packs.
        rank_pooled_tokens: pooled rows of each rank, summed over packs.
        rank_image_load: work of each rank, summed over packs: in float64, as 64 bits do not hold that of a million.
    """

    images: Float64[np.ndarray, "packs"]
    pooled_tokens: Float64[np.ndarray, "packs"]
    image_load: Float64[np.ndarray, "packs"]
    largest_load: Float64[np.ndarray, "packs"]
    mean_load: Float64[np.ndarray, "packs"]
    least_load: Float64[np.ndarray, "packs"]
    rank_images: Int64[np.ndarray, "ranks"]
    rank_pooled_tokens: Int64[np.ndarray, "ranks"]
    rank_image_load: Float64[np.ndarray, "ranks"]

    @classmethod
    def of(cls, blocks: Iterable[Block], cp_size: int) -> ImageLoadColumns:
        """The loads of a CP size's boundaries, by ``IMAGE_KINDS``, CP rank and pack, in order of packs."""
        empty = np.zeros((len(IMAGE_KINDS), cp_size, 0), np.int64)
        return _joined([_images_of(block) for block in blocks] or [_images_of(empty)])


Loads = TypeVar("Loads", LayoutLoadColumns, ImageLoadColumns)


def _layout_of(
    block: Block, tiles: Int64[np.ndarray, "packs"], ring_degree: int, config: PackConfig
) -> LayoutLoadColumns:
    attention, rank_tiles, ring_steps, keys = block
    slice_tokens, weight = config.seq_len // ring_degree, key_weight(config.cost)
    gather_path, ring_path = rank_tiles.max(axis=0), ring_steps.sum(axis=0)
    as_ring = ring_cost(ring_path, slice_tokens, ring_degree, weight)
    return LayoutLoadColumns(
        attention=imbalances(attention),
        tiles=imbalances(rank_tiles),
        tile_floor=tiles / ring_degree,
        gather_path_tiles=gather_path,
        ring_path_tiles=ring_path,
        traffic=keys.sum(axis=0) / (config.seq_len * max(ring_degree - 1, 1)),
        cost=np.minimum(as_ring, gather_cost(gather_path, keys.max(axis=0), weight)),
        rank_attention=attention.sum(axis=1),
        rank_tiles=rank_tiles.sum(axis=1),
        rank_keys=keys.sum(axis=1),
    )


def _empty_layout(ring_degree: int) -> LayoutLoadColumns:
    no_packs = {field.name: np.zeros(0) for field in fields(LayoutLoadColumns)}
    ranks = {name: np.zeros(ring_degree, np.int64) for name in no_packs if name.startswith("rank_")}
    tiles = {name: np.zeros(0, np.int64) for name in ("gather_path_tiles", "ring_path_tiles")}
    return LayoutLoadColumns(**{**no_packs, **ranks, **tiles})


def _images_of(block: Block) -> ImageLoadColumns:
    images, pooled, work, least = block
    return ImageLoadColumns(
        images=imbalances(images),
        pooled_tokens=imbalances(pooled),
        image_load=imbalances(work),
        largest_load=work.max(axis=0).astype(np.float64),
        mean_load=work.mean(axis=0),
        least_load=least.max(axis=0).astype(np.float64),
        rank_images=images.sum(axis=1),
        rank_pooled_tokens=pooled.sum(axis=1),
        rank_image_load=work.sum(axis=1, dtype=np.float64),
    )


def imbalances(loads: Int64[np.ndarray, "ranks packs"]) -> Float64[np.ndarray, "packs"]:
    """Largest load over mean load of each pack; nan where there is nothing to share."""
    means = loads.sum(axis=0) / len(loads)
    nothing: Float64[np.ndarray, "packs"] = np.full(loads.shape[1], np.nan)
    return np.divide(loads.max(axis=0), means, out=nothing, where=means > 0)


def _multiples(path: Int64[np.ndarray, "packs"], floor: Float64[np.ndarray, "packs"]) -> Float64[np.ndarray, "packs"]:
    nothing: Float64[np.ndarray, "packs"] = np.full(len(path), np.nan)
    return np.divide(path, floor, out=nothing, where=floor > 0)


def _per_pack(loads: LayoutLoadColumns | ImageLoadColumns) -> list[str]:
    return [field.name for field in fields(loads) if not field.name.startswith("rank_")]


def _joined(parts: list[Loads]) -> Loads:
    """Consecutive packs as one: what is per pack one after the other, what is per rank added up."""
    first, per_pack = parts[0], _per_pack(parts[0])
    if len(parts) == 1:
        return first
    return replace(
        first,
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            if field.name in per_pack
            else np.sum([getattr(part, field.name) for part in parts], axis=0)
            for field in fields(first)
        },
    )


class StoredLoads:
    """Reads loads from an open ``balance.parquet``.

    Args:
        file: the table.
        order: where its rows lie.
    """

    def __init__(self, file: pq.ParquetFile, order: BalanceOrder) -> None:
        self._file, self._order = file, order
        self._edges = row_group_edges(file.metadata)

    def read(self, group: LoadGroup, packs: range) -> Iterator[Block]:
        """The loads of a group for consecutive packs, a block of packs at a time."""
        for stretch in self._order.stretches_of(group, packs):
            first, end = max(packs.start, stretch.first_pack), min(packs.stop, stretch.first_pack + stretch.packs)
            loads = block_of(self._rows(stretch), stretch)
            yield np.ascontiguousarray(loads[:, :, first - stretch.first_pack : end - stretch.first_pack])

    def _rows(self, stretch: Stretch) -> Int64[np.ndarray, "rows"]:
        """The loads of a stretch from the row groups that it lies in: a single one, as the writer makes them."""
        first = int(np.searchsorted(self._edges, stretch.first_row, side="right")) - 1
        last = int(np.searchsorted(self._edges, stretch.first_row + stretch.rows, side="left"))
        column = self._file.read_row_groups(range(first, last), columns=["load"]).column("load")
        return numbers_of(column.slice(stretch.first_row - int(self._edges[first]), stretch.rows))


def block_of(rows: Int64[np.ndarray, "rows"], stretch: Stretch) -> Block:
    """The loads in a stretch of rows by kind, rank and pack."""
    return rows.reshape(len(stretch.group.kinds), stretch.packs, stretch.group.degree).transpose(0, 2, 1)


def numbers_of(column: pa.ChunkedArray) -> np.ndarray:
    """A column of numbers without nulls as an array, without a copy where it is in one chunk.

    Arrow's own conversion imports pandas, which takes 0.25 s.
    """
    return np.from_dlpack(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())

"""Loads of layouts that were not packed and that a reader derives, measured on the masks of some packs.

Layouts with a definition exist at any degree that divides the pack (:mod:`preshard.schemas.layout`). Balanced ones
come from a search, which only packing makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import ring_step_maxima
from preshard.packer_service.layout.needs import keys_fetched
from preshard.packer_service.layout.tiles import tiles_by_rank
from preshard.packer_service.report.advice.estimate.loads import PackLoads, SlowestRank
from preshard.packer_service.report.advice.estimate.split import divisors
from preshard.schemas.config import PackConfig
from preshard.schemas.header import DocumentSpan
from preshard.schemas.layout import BLOCK_SCHEMES, SCHEMES, segment_edges
from preshard.schemas.schemes import define_runs

MOST_RING = 64
"""Largest ring degree that is derived."""

MOST_MASKS = 16
"""Packs whose masks are read: a range of a shard each, and the mean path over them was within 5% (docs/advice.md)."""

MOST_TILES = 1 << 25
"""Tiles that are counted for all masks and layouts together, which bounds the time where packs are very long."""


class PackMask(NamedTuple):
    """Mask of a pack: who sees whom, and the edges of its documents with their alignment padding."""

    mask: MaskIndex
    edges: Int64[np.ndarray, "segments_plus_1"]

    @classmethod
    def of(cls, mask: MaskIndex, documents: Sequence[DocumentSpan]) -> PackMask:
        starts = np.array([span.start for span in documents], np.int64)
        lengths = np.array([span.aligned_length for span in documents], np.int64)
        return cls(mask, segment_edges(starts, lengths, mask.seq_len))


def derivable_layouts(config: PackConfig, gpus: int) -> list[tuple[str, int]]:
    """Schemes and ring degrees that were not packed and that a reader derives, for rings that divide the devices."""
    rings = [ring for ring in divisors(gpus) if 1 < ring <= MOST_RING and config.seq_len % ring == 0]
    found = [(scheme, ring) for ring in rings for scheme in SCHEMES if scheme not in BLOCK_SCHEMES]
    return [
        (scheme, ring)
        for scheme, ring in found
        if not (scheme in config.layouts and ring in config.ring_degrees)
        and (scheme == "contiguous" or config.alignment % (2 * ring) == 0)
    ]


def with_derived(loads: PackLoads, config: PackConfig, gpus: int, read: Callable[[int], PackMask]) -> PackLoads:
    """The loads with those of layouts that a reader derives.

    A pack whose mask was not read takes the loads of the one that was and that has the most similar number of tiles, in
    proportion to its own. Of a model with windows, nothing is derived: its layers have two masks.

    Args:
        loads: the sampled packs.
        config: the dataset's configuration.
        gpus: devices.
        read: the mask of a pack.

    Raises:
        LayoutError: documents overlap in a mask.
    """
    if loads.windows:
        return loads
    wanted = derivable_layouts(config, gpus)
    tiles = loads.columns["attention_tiles"]
    places = _places(tiles, len(wanted))
    if not len(places):
        return loads
    packs = np.concatenate([np.asarray(span) for span in loads.spans])[places]
    masks = [read(pack) for pack in packs.tolist()]
    like = _most_similar(tiles, places)
    scale = tiles / np.maximum(tiles[places][like], 1)
    derived = {(scheme, ring): _spread(masks, scheme, ring, like, scale) for scheme, ring in wanted}
    return replace(loads, layouts={**loads.layouts, **derived}, derived=frozenset(derived), masks=len(masks))


def not_derived(why: str) -> str:
    """Note of an answer where masks cannot be read."""
    return f"layouts that were not packed are left out, as no mask could be read to derive them: {why}"


def _places(tiles: Int64[np.ndarray, "packs"], layouts: int) -> Int64[np.ndarray, "masks"]:
    """The packs whose masks are read: at least one, at equal distances among all packs from few tiles to many.

    By their numbers they would be alike, since packs of a step are chosen by their cost.
    """
    if not layouts or not len(tiles):
        return np.zeros(0, np.int64)
    each = layouts * max(float(tiles.mean()), 1.0)
    number = min(len(tiles), MOST_MASKS, max(int(MOST_TILES / each), 1))
    ascending = np.argsort(tiles, kind="stable")
    return ascending[(2 * np.arange(number) + 1) * len(tiles) // (2 * number)]


def _most_similar(tiles: Int64[np.ndarray, "packs"], places: Int64[np.ndarray, "masks"]) -> Int64[np.ndarray, "packs"]:
    """The number of the mask that stands for each pack; a pack whose mask was read stands for itself."""
    order = np.argsort(tiles[places], kind="stable")
    ascending = tiles[places][order]
    like = order[np.searchsorted((ascending[1:] + ascending[:-1]) / 2, tiles)]
    like[places] = np.arange(len(places))
    return like


def _spread(
    masks: Sequence[PackMask],
    scheme: str,
    ring: int,
    like: Int64[np.ndarray, "packs"],
    scale: Float64[np.ndarray, "packs"],
) -> SlowestRank:
    """The loads of one layout on the masks, for every pack."""
    measured = [_measured(mask, scheme, ring) for mask in masks]
    gather, steps, keys = (np.stack([each[kind] for each in measured], axis=-1) for kind in range(3))
    return SlowestRank(
        gather_path=np.rint(gather[like] * scale).astype(np.int64),
        ring_steps=np.rint(steps[:, like] * scale).astype(np.int64),
        most_keys=keys[like],
    )


def _measured(pack: PackMask, scheme: str, ring: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Most tiles of a rank, the same of each ring step, and most keys that a rank fetches."""
    runs = define_runs(scheme, pack.edges, ring)
    tiles = tiles_by_rank(pack.mask, runs, ring)
    keys = keys_fetched(pack.mask, runs, ring)
    return tiles.sum(axis=1).max(), ring_step_maxima(tiles), keys.max()

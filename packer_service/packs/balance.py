"""Loads of every rank of a pack, as rows of ``balance.parquet``. Packing writes them, verifying derives them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from packer_service.layout.images import image_edges
from packer_service.layout.mask import MaskIndex
from packer_service.layout.measures import LayoutMeasures, measure_layout
from packer_service.plan.cost import causal_area, document_tiles
from schemas.balance import IMAGE_KINDS, LAYOUT_KINDS
from schemas.layout import TILE, RankImages, TokenLayout, boundaries_from_edges
from schemas.tables import BALANCE


def image_boundaries(
    cum_image_bounds: Int64[np.ndarray, "units"],
    cum_token_pooling_bounds: Int64[np.ndarray, "units"],
    cp_sizes: Sequence[int],
) -> dict[str, dict[str, RankImages]]:
    """Optimal image boundaries of a pack for each CP size.

    The load of a unit is its crops. Every crop has as many patches and pooled rows as every other, so any weights on
    encoder and connector give the same boundaries.
    """
    crops = np.diff(cum_image_bounds, prepend=0)
    return {
        str(size): boundaries_from_edges(image_edges(crops, size), cum_image_bounds, cum_token_pooling_bounds)
        for size in sorted(cp_sizes)
    }


def pack_tiles(lengths: Int64[np.ndarray, "docs"], area: int) -> float:
    """The plan's estimate of a pack's attention tiles, from the lengths and the allowed pairs of the whole pack.

    ``document_tiles`` is linear in the area, so where in the pack the pairs lie makes no difference.
    """
    causal = causal_area(lengths)
    beyond = area - int(causal.sum())
    return float(document_tiles(lengths, causal).sum()) + beyond / TILE**2


def layout_loads(measures: LayoutMeasures) -> dict[str, Int64[np.ndarray, "ranks"]]:
    """Kind of load to the load of each ring rank (of each ring step, for ``ring_step``)."""
    loads = (measures.area, measures.tiles.sum(axis=1), measures.ring_steps, measures.keys_fetched)
    return dict(zip(LAYOUT_KINDS, loads, strict=True))


@dataclass(kw_only=True)
class BalanceRows:
    """Rows of ``balance.parquet`` as they come, pack by pack."""

    columns: dict[str, list[object]] = field(default_factory=lambda: {name: [] for name in BALANCE.names})

    def add_pack(
        self,
        pack_id: int,
        index: MaskIndex,
        layouts: Sequence[TokenLayout],
        boundaries: dict[str, dict[str, RankImages]],
    ) -> None:
        """Adds the rows of one pack: its layouts in their order, then its image boundaries by CP size."""
        for layout in layouts:
            for kind, of_rank in layout_loads(measure_layout(index, layout)).items():
                self._add(pack_id, kind, layout.scheme, layout.ring_degree, of_rank.tolist())
        for size, ranks in boundaries.items():
            parts = [ranks[str(rank)] for rank in range(int(size))]
            crops = [part["end_image_idx"] - part["start_image_idx"] for part in parts]
            pooled = [part["end_pool_idx"] - part["start_pool_idx"] for part in parts]
            for kind, loads in zip(IMAGE_KINDS, (crops, pooled), strict=True):
                self._add(pack_id, kind, None, int(size), loads)

    def _add(self, pack_id: int, kind: str, scheme: str | None, degree: int, loads: list[int]) -> None:
        ranks = len(loads)
        self.columns["pack_id"] += [pack_id] * ranks
        self.columns["kind"] += [kind] * ranks
        self.columns["scheme"] += [scheme] * ranks
        self.columns["degree"] += [degree] * ranks
        self.columns["rank"] += range(ranks)
        self.columns["load"] += loads

    def table(self) -> pa.Table:
        arrays = [pa.array(self.columns[column.name], column.type) for column in BALANCE]
        return pa.Table.from_arrays(arrays, schema=BALANCE)

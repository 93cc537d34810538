"""Loads of every rank of a pack, as rows of ``balance.parquet``. Packing writes them, verifying derives them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import LayoutMeasures, measure_layout
from preshard.packer_service.layout.tiles import whole_tiles
from preshard.schemas.balance import IMAGE_KINDS, LAYOUT_KINDS
from preshard.schemas.boundaries import smallest_limit
from preshard.schemas.layout import RankImages, TokenLayout
from preshard.schemas.tables import BALANCE


def layout_loads(measures: LayoutMeasures) -> dict[str, Int64[np.ndarray, "ranks"]]:
    """The load of each ring rank (of each ring step, for ``ring_step``) by kind of load."""
    loads = (measures.area, measures.tiles.sum(axis=1), measures.ring_steps, measures.keys_fetched)
    return dict(zip(LAYOUT_KINDS, loads, strict=True))


@dataclass(kw_only=True)
class BalanceRows:
    """Rows of ``balance.parquet``, collected pack by pack."""

    columns: dict[str, list[object]] = field(default_factory=lambda: {name: [] for name in BALANCE.names})

    def add_pack(
        self,
        pack_id: int,
        index: MaskIndex,
        layouts: Sequence[TokenLayout],
        boundaries: dict[str, dict[str, RankImages]],
        cum_image_bounds: Int64[np.ndarray, "units"],
        unit_loads: Int64[np.ndarray, "units"],
    ) -> None:
        """Adds the rows of one pack: its layouts in their order, then its image boundaries by CP size."""
        whole = whole_tiles(index)
        known: dict[tuple[int, bytes], dict[str, Int64[np.ndarray, "ranks"]]] = {}
        for layout in layouts:
            same = layout.ring_degree, layout.runs.tobytes()  # at ring degree 1 all schemes give one layout
            if same not in known:
                known[same] = layout_loads(measure_layout(index, layout, whole=whole))
            for kind, of_rank in known[same].items():
                self._add(pack_id, kind, layout.scheme, layout.ring_degree, of_rank.tolist())
        crops_before = np.concatenate([[0], cum_image_bounds])
        load_before = np.concatenate([[0], np.cumsum(unit_loads)])
        for size, ranks in boundaries.items():
            parts = [ranks[str(rank)] for rank in range(int(size))]
            crops = [part["end_image_idx"] - part["start_image_idx"] for part in parts]
            pooled = [part["end_pool_idx"] - part["start_pool_idx"] for part in parts]
            edges = np.searchsorted(crops_before, [0, *(part["end_image_idx"] for part in parts)])
            work = np.diff(load_before[edges]).tolist()
            least = [smallest_limit(unit_loads.tolist(), int(size))] * int(size)
            for kind, loads in zip(IMAGE_KINDS, (crops, pooled, work, least), strict=True):
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

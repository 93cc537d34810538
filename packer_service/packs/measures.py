"""What layouts and image boundaries do to a pack, as rows of ``measures.parquet``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.packer_service.layout.mask import MaskIndex, full_and_window
from preshard.packer_service.layout.measures import LayoutMeasures, measure_layout
from preshard.packer_service.layout.tiles import whole_tiles
from preshard.schemas.boundaries import smallest_limit
from preshard.schemas.dataset.measures import IMAGE_LOADS, LAYERS_SUMS, MEASURES
from preshard.schemas.layout import RankImages, TokenLayout
from preshard.schemas.manifest import LayerMasks


@dataclass(kw_only=True)
class MeasureRows:
    """Rows of ``measures.parquet``, collected pack by pack."""

    rows: list[dict[str, object]] = field(default_factory=list)

    def add_pack(
        self,
        pack_id: int,
        index: MaskIndex,
        layouts: Sequence[TokenLayout],
        boundaries: dict[str, dict[str, RankImages]],
        cum_image_bounds: Int64[np.ndarray, "units"],
        unit_loads: Int64[np.ndarray, "units"],
        layers: LayerMasks | None = None,
    ) -> None:
        """Adds the rows of one pack: its layouts in their order, then its image boundaries by CP size."""
        masks = [(each, whole_tiles(each)) for each in full_and_window(index, layers) if each is not None]
        known: dict[tuple[int, bytes], dict[str, object]] = {}
        for layout in layouts:
            same = layout.ring_degree, layout.runs.tobytes()  # at ring degree 1 all schemes give one layout
            if same not in known:
                measures = [measure_layout(each, layout, whole=whole) for each, whole in masks]
                known[same] = layout_columns(measures[0])
                if layers is not None:
                    known[same] |= window_columns(measures[0], measures[1], layers)
            place = {"pack_id": pack_id, "scheme": layout.scheme, "degree": layout.ring_degree}
            self.rows.append(place | known[same])
        for size, ranks in boundaries.items():
            columns = image_columns([ranks[str(rank)] for rank in range(int(size))], cum_image_bounds, unit_loads)
            self.rows.append({"pack_id": pack_id, "scheme": None, "degree": int(size)} | columns)

    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self.rows, schema=MEASURES)


def layout_columns(measures: LayoutMeasures) -> dict[str, object]:
    """The columns of a token layout."""
    ring_degree, seq_len = measures.ring_degree, measures.ring_degree * measures.slice_tokens
    tiles, keys = measures.tiles.sum(axis=1), measures.keys_fetched
    return {
        "attention_tiles": measures.whole_tiles,
        "gather_path": measures.gather_path,
        "ring_path": measures.ring_path,
        "sum_attention": int(measures.area.sum()),
        "most_attention": int(measures.area.max()),
        "sum_tiles": int(tiles.sum()),
        "sum_keys": int(keys.sum()),
        "most_keys": int(keys.max()),
        "possible_keys": seq_len * (ring_degree - 1),
        "attention": measures.area.tolist(),
        "tiles": tiles.tolist(),
        "ring_steps": measures.ring_steps.tolist(),
        "keys_fetched": keys.tolist(),
    }


def window_columns(full: LayoutMeasures, window: LayoutMeasures, layers: LayerMasks) -> dict[str, object]:
    """The columns of a token layout for a model with windows: under the window, and of all layers together."""
    columns = layout_columns(window)
    totals = {
        name: layers.full_layers * getattr(full, of) + layers.window_layers * getattr(window, of)
        for name, of in zip(LAYERS_SUMS, ("whole_tiles", "gather_path", "ring_path"), strict=True)
    }
    return {f"window_{name}": value for name, value in columns.items() if name != "possible_keys"} | totals


def image_columns(
    ranks: Sequence[RankImages], cum_image_bounds: Int64[np.ndarray, "units"], unit_loads: Int64[np.ndarray, "units"]
) -> dict[str, object]:
    """The columns of image boundaries: the parts of all ranks."""
    crops = [part["end_image_idx"] - part["start_image_idx"] for part in ranks]
    pooled = [part["end_pool_idx"] - part["start_pool_idx"] for part in ranks]
    crops_before = np.concatenate([[0], cum_image_bounds])
    edges = np.searchsorted(crops_before, [0, *(part["end_image_idx"] for part in ranks)])
    work = np.diff(np.concatenate([[0], np.cumsum(unit_loads)])[edges]).tolist()
    columns: dict[str, object] = {"least_image_load": smallest_limit(unit_loads.tolist(), len(ranks))}
    for name, loads in zip(IMAGE_LOADS, (crops, pooled, work), strict=True):
        columns |= {name: loads, f"sum_{name}": sum(loads), f"most_{name}": max(loads)}
    return columns

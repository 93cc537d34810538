"""Totals of a pack: its columns of ``packs.parquet``, and its rows of ``measures.parquet``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.packer_service.layout.area import attention_area
from preshard.packer_service.layout.mask import MaskIndex, full_and_window
from preshard.packer_service.layout.measures import LayoutMeasures, measure_layout
from preshard.packer_service.layout.tiles import whole_tiles
from preshard.packer_service.packs.units import Units
from preshard.packer_service.plan.cost import CostModel, causal_area, pack_cost
from preshard.schemas.boundaries import smallest_limit
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import IMAGE_LOADS, LAYERS_SUMS, MEASURES
from preshard.schemas.layout import TILE, RankImages, TokenLayout
from preshard.schemas.manifest import LayerMasks
from preshard.schemas.members import sample_key
from preshard.schemas.sequence import PackedSequence


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitTotals:
    """Totals of the units of a document or of a pack: their number, crops, patches, and the encoder's work."""

    n_units: int
    n_images: int
    n_patches: int
    load: int

    @classmethod
    def of(cls, units: Units) -> UnitTotals:
        if not len(units):  # most documents of a text corpus
            return _NOTHING
        return cls(
            n_units=len(units),
            n_images=int(units.crops.sum()),
            n_patches=int(units.patches.sum()),
            load=int(units.loads.sum()),
        )


_NOTHING = UnitTotals(n_units=0, n_images=0, n_patches=0, load=0)


def pack_figures(
    pack_id: int,
    sequence: PackedSequence,
    index: MaskIndex,
    lengths: Int64[np.ndarray, "docs"],
    units: UnitTotals,
    config: PackConfig,
    layers: LayerMasks | None = None,
) -> dict[str, int | float | str]:
    """The columns that follow from a pack's arrays, its documents' lengths and its units.

    ``index`` is the mask of full layers, ``layers`` those of a model where some have a window.
    """
    area, model = attention_area(index), CostModel.of(config, layers)
    cost = pack_cost(
        model,
        seq_len=config.seq_len,
        tiles=np.array([_estimated_tiles(model, lengths, area)]),
        loads=np.array([units.load]),
    )
    return {
        "pack_id": pack_id,
        "key": sample_key(pack_id),
        "n_tokens": int((sequence.doc_ids >= 0).sum()),
        "n_padding": int((sequence.doc_ids < 0).sum()),
        "n_documents": len(lengths),
        "n_units": units.n_units,
        "n_images": units.n_images,
        "n_patches": units.n_patches,
        "n_pooled_tokens": int((sequence.pool_ids >= 0).sum()),
        "load": units.load,
        "attention_area": area,
        "attention_tiles": whole_tiles(index),
        "cost": float(cost[0]),
    }


def _estimated_tiles(model: CostModel, lengths: Int64[np.ndarray, "docs"], area: int) -> float:
    """The plan's estimate of a pack's attention tiles, from the lengths and the allowed pairs of the whole pack.

    The estimate is linear in the area, so it does not matter where in the pack the pairs lie.
    """
    causal = causal_area(lengths)
    beyond = area - int(causal.sum())
    return float(model.attended_tiles(lengths, causal).sum()) + model.weights[0] * beyond / TILE**2


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

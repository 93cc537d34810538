"""The columns of ``packs.parquet`` that follow from a pack's content. Packing writes them, verifying derives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.layout.area import attention_area
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.tiles import whole_tiles
from preshard.packer_service.packs.units import Units
from preshard.packer_service.plan.cost import CostModel, causal_area, pack_cost
from preshard.schemas.codec import sample_key
from preshard.schemas.config import PackConfig
from preshard.schemas.layout import TILE
from preshard.schemas.manifest import LayerMasks
from preshard.schemas.sequence import PackedSequence


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitTotals:
    """What the units of a document or of a pack come to: their number, crops, patches, and the encoder's work."""

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

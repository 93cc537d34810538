"""Kimi K2.5 and K2.6: PaddleOCR-VL's patches line by line; an encoder that is told where they lie."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from preshard.trainer.families.family import Features, Inputs, ModelFamily, move_to_model
from preshard.trainer.families.paddleocr_vl import cut_lines, list_places, normalise_lines


def _encode(core: Any, inputs: Inputs) -> Features:
    # The model's own call reads grids on the device; its two parts take them on the host.
    from transformers.models.kimi_k25.modeling_kimi_k25 import get_vision_frame_index, get_vision_temporal_merge_index

    grids, tower = inputs["image_grid_thw"], core.vision_tower
    places = {
        **list_places(grids, tower.patch_embed.pos_emb),
        "frame_index": get_vision_frame_index(grids),
        "temporal_merge_index": get_vision_temporal_merge_index(grids, *tower.merge_kernel_size),
    }
    edges = places["cu_seqlens"]
    given = {name: move_to_model(core, tensor) for name, tensor in places.items()}
    pixels = move_to_model(core, inputs["pixel_values"]).to(tower.dtype)
    squares = tower(pixels, grids, return_dict=True, **given, max_seqlen=int(edges.diff().max()), edges=edges)
    rows: Tensor = core.mm_projector(squares.pooler_output)[:, 0]
    return rows


def _make_smallest(config: Any) -> dict[str, Tensor]:
    """The patches of one row."""
    side, (high, wide) = config.vision_config.patch_size, config.vision_config.merge_kernel_size
    return {"pixel_values": torch.zeros(high * wide, 3, side, side), "image_grid_thw": torch.tensor([[1, high, wide]])}


MODELS = {
    "kimi_k25": ModelFamily(
        cut=cut_lines, normalise=normalise_lines, encode=_encode, stand_in=_make_smallest, side_by_side=True
    )
}

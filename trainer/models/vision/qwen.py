"""Encoders of the Qwen-VL models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from preshard.trainer.models.interface import OWN_FUNCTIONS, PLACES, has_transformers
from preshard.trainer.models.vision.family import Features, Inputs, ModelFamily, move_to_model, replace_rows


def join_kinds(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Patches and grids of images, then of videos: they are of one kind and go through one encoder."""
    names = ("pixel_values", "pixel_values_videos"), ("image_grid_thw", "video_grid_thw")
    pixels, grids = (torch.cat([inputs[name] for name in both if name in inputs]) for both in names)
    return pixels, grids


def _qwen_encode(core: Any, inputs: Inputs, *, places: Callable[[Any, Tensor], dict[str, Tensor]]) -> Features:
    pixels, grids = join_kinds(inputs)
    if has_transformers(PLACES):
        given = places(core, grids)
    else:  # the encoder works them out where the grids are
        grids, given = move_to_model(core, grids), {}
    made = core.get_image_features(move_to_model(core, pixels), grids, return_dict=True, **given)
    deep = getattr(made, "deepstack_features", None) or ()
    layers = [layer if isinstance(layer, Tensor) else torch.cat(layer) for layer in (made.pooler_output, *deep)]
    return torch.cat(layers, dim=1)


def _qwen3_places(core: Any, grids: Tensor) -> dict[str, Tensor]:
    """What the encoder works out of grids, and takes if it is there already: places of patches among learnt ones."""
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

    tower = core.visual
    indices, weights = get_vision_interpolation_indices_and_weights(
        grids,
        num_grid_per_side=tower.num_grid_per_side,
        mode=tower.interpolation_mode,
        align_corners=tower.interpolation_align_corners,
        spatial_merge_size=tower.spatial_merge_size,
    )
    found = {
        "position_ids": get_vision_position_ids(grids, tower.spatial_merge_size),
        "interp_indices": indices,
        "interp_weights": weights,
    }
    return {name: move_to_model(core, tensor) for name, tensor in found.items()}


def _qwen2_5_places(core: Any, grids: Tensor) -> dict[str, Tensor]:
    """The same for an encoder whose attention is in windows. Their edges stay on the host, which cuts at them."""
    from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

    tower = core.visual
    order, edges = get_vision_window_index(
        grids,
        spatial_merge_size=tower.spatial_merge_size,
        window_size=tower.window_size,
        patch_size=tower.patch_size,
    )
    positions = get_vision_position_ids(grids, tower.spatial_merge_size)
    return {
        "position_ids": move_to_model(core, positions),
        "window_index": move_to_model(core, order),
        "cu_window_seqlens": edges,
    }


def make_smallest(config: Any) -> dict[str, Tensor]:
    """The patches of one row."""
    vision = config.vision_config
    merge = vision.spatial_merge_size
    numbers = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return {"pixel_values": torch.zeros(merge**2, numbers), "image_grid_thw": torch.tensor([[1, merge, merge]])}


QWEN3_VL = ModelFamily(encode=partial(_qwen_encode, places=_qwen3_places), stand_in=make_smallest, fill=replace_rows)

QWEN3_5 = replace(QWEN3_VL, since=OWN_FUNCTIONS)

QWEN2_5_VL = ModelFamily(
    encode=partial(_qwen_encode, places=_qwen2_5_places), stand_in=make_smallest, fill=replace_rows
)

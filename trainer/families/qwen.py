"""The Qwen-VL models: patches in squares, frames in pairs; encoders that are told where patches lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from preshard.schemas.model.families import Version
from preshard.trainer.families.family import Features, Inputs, ModelFamily, has_transformers, move_to_model
from preshard.trainer.families.pictures import (
    Arrays,
    InputUnit,
    Levels,
    Settings,
    image_table,
    look_up,
    stills,
    video_table,
    videos,
)

PLACES: Version = (5, 15)
"""Vision encoders take what they would otherwise work out of the grids, and for which a device's host waits."""


def cut_squares(settings: Settings, units: Sequence[InputUnit]) -> Arrays:
    """``pixel_values`` with ``image_grid_thw``, and ``pixel_values_videos`` with ``video_grid_thw``.

    Of a video whose units lie on several ranks, each rank has a grid with as many patches of time as it holds.
    """
    made: Arrays = {}
    if images := stills(units):
        made["pixel_values"] = np.concatenate([_qwen_patches(settings, unit, 1) for unit in images])
        made["image_grid_thw"] = np.array([unit.grid for unit in images], np.int64)
    if moving := videos(units):
        together = settings["temporal_patch_size"]
        parts = [_qwen_patches(settings, unit, together) for own in moving for unit in own]
        made["pixel_values_videos"] = np.concatenate(parts)
        grids = [(sum(unit.grid[0] for unit in own), *own[0].grid[1:]) for own in moving]
        made["video_grid_thw"] = np.array(grids, np.int64)
    return made


def _qwen_patches(settings: Settings, unit: InputUnit, together: int) -> UInt8[np.ndarray, "patches levels"]:
    """The patches of a unit, square by square; a patch has its colours, and each its frames, rows and columns."""
    patch, merge = settings["patch_size"], settings["merge_size"]
    last = (unit.pictures[-1],) * (together - len(unit.pictures))
    pixels = np.stack([*unit.pictures, *last])
    _, high, wide = unit.grid
    squares = pixels.reshape(together, high // merge, merge, patch, wide // merge, merge, patch, 3)
    return squares.transpose(1, 4, 2, 5, 7, 0, 3, 6).reshape(high * wide, 3 * together * patch * patch)


def normalise_squares(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    """A still stands for as many frames as the encoder takes together."""
    together, area, made = settings["temporal_patch_size"], settings["patch_size"] ** 2, {}
    if "pixel_values" in levels:
        pixels = look_up(levels["pixel_values"], image_table(settings), area)
        made["pixel_values"] = pixels.view(-1, 3, 1, area).expand(-1, -1, together, -1).flatten(1)
    if "pixel_values_videos" in levels:
        made["pixel_values_videos"] = look_up(levels["pixel_values_videos"], video_table(settings), together * area)
    return made


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
    """Inputs that the encoder works out of grids unless they are there already: places of patches among learnt ones."""
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


_NEWER, _OLDER = (
    ModelFamily(
        cut=cut_squares,
        normalise=normalise_squares,
        encode=partial(_qwen_encode, places=places),
        stand_in=make_smallest,
        side_by_side=True,
    )
    for places in (_qwen3_places, _qwen2_5_places)
)
MODELS = {
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _NEWER),
    **dict.fromkeys(("qwen2_5_vl", "exaone4_5"), _OLDER),
}

"""PaddleOCR-VL: patches line by line, each a small picture; an encoder that is told where patches lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from preshard.trainer.families.family import Features, Inputs, ModelFamily, move_to_model
from preshard.trainer.families.pictures import Arrays, InputUnit, Levels, Settings, image_table, look_up


def cut_lines(settings: Settings, units: Sequence[InputUnit]) -> Arrays:
    """``pixel_values``, [patches, 3, patch, patch], and ``image_grid_thw``."""
    if not units:
        return {}
    patch, made = settings["patch_size"], []
    for unit in units:
        [picture] = unit.pictures
        _, high, wide = unit.grid
        patches = picture.reshape(high, patch, wide, patch, 3).transpose(0, 2, 4, 1, 3)
        made.append(patches.reshape(high * wide, 3, patch, patch))
    return {
        "pixel_values": np.concatenate(made),
        "image_grid_thw": np.array([unit.grid for unit in units], np.int64),
    }


def normalise_lines(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    return {"pixel_values": look_up(levels["pixel_values"], image_table(settings), settings["patch_size"] ** 2)}


def list_places(grids: Tensor, learnt: Any) -> dict[str, Tensor]:
    """Places of patches that lie line by line, as an encoder takes them, listed on the host.

    Args:
        grids: ``image_grid_thw``.
        learnt: the module of the learnt positions.
    """
    from transformers.vision_utils import (
        get_vision_cu_seqlens,
        get_vision_interpolation_indices_and_weights,
        get_vision_position_ids,
    )

    indices, weights = get_vision_interpolation_indices_and_weights(
        grids,
        num_grid_per_side=learnt.num_grid_per_side,
        mode=learnt.interpolation_mode,
        align_corners=learnt.interpolation_align_corners,
    )
    return {
        **{"position_ids": get_vision_position_ids(grids, 1), "interp_indices": indices, "interp_weights": weights},
        "cu_seqlens": get_vision_cu_seqlens(grids),
    }


def _encode(core: Any, inputs: Inputs) -> Features:
    # The model's own call reads grids on the device; its two parts take them on the host.
    grids, tower = inputs["image_grid_thw"], core.visual
    places = list_places(grids, tower.vision_model.embeddings)
    edges = places["cu_seqlens"]
    given = {name: move_to_model(core, tensor) for name, tensor in places.items()}
    pixels = move_to_model(core, inputs["pixel_values"]).to(tower.dtype)[None]
    longest = int(edges.diff().max())
    patches = tower(pixels, grids, return_dict=True, **given, max_seqlen=longest, edges=edges).last_hidden_state
    rows: Tensor = core.projector(patches, grids)
    return rows


def _make_smallest(config: Any) -> dict[str, Tensor]:
    """The patches of one row."""
    vision = config.vision_config
    merge, side = vision.spatial_merge_size, vision.patch_size
    return {
        "pixel_values": torch.zeros(merge**2, vision.num_channels, side, side),
        "image_grid_thw": torch.tensor([[1, merge, merge]]),
    }


MODELS = {
    "paddleocr_vl": ModelFamily(
        cut=cut_lines, normalise=normalise_lines, encode=_encode, stand_in=_make_smallest, side_by_side=True
    )
}

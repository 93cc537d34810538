"""The encoder of Molmo2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from preshard.trainer.models.vision.family import Features, Inputs, ModelFamily, add_rows, move_to_model

NO_PATCH = -1
"""Stands in Molmo2's pooling where a window has fewer patches."""


def _molmo2_encode(core: Any, inputs: Inputs) -> Features:
    pixels, pooling, grids = _molmo2_joined(inputs)
    made = core.get_image_features(move_to_model(core, pixels), move_to_model(core, pooling), grids)
    return torch.cat(list(made.pooler_output))


def _molmo2_joined(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Frames of videos after the crops of images. A row of a frame pools more patches, so rows of images are filled up
    with the number that stands for no patch.
    """
    if "pixel_values_videos" not in inputs:
        return inputs["pixel_values"], inputs["image_token_pooling"].long(), inputs["image_grids"]
    pixels, pooling, moving = (inputs[name] for name in ("pixel_values_videos", "video_token_pooling", "video_grids"))
    frames, high, wide = moving.unbind(1)
    none = torch.zeros_like(wide)
    grids, pooling = torch.stack([frames * high, wide, none, none], dim=1), pooling.long()
    if "pixel_values" not in inputs:
        return pixels, pooling, grids
    stills, of_stills = inputs["pixel_values"], inputs["image_token_pooling"].long()
    width = max(pooling.shape[1], of_stills.shape[1])
    shifted = torch.where(pooling >= 0, pooling + stills.shape[:2].numel(), NO_PATCH)
    parts = [pad(part, (0, width - part.shape[1]), value=NO_PATCH) for part in (of_stills, shifted)]
    return torch.cat([stills, pixels]), torch.cat(parts), torch.cat([inputs["image_grids"], grids])


def _molmo2_stand_in(config: Any) -> dict[str, Tensor]:
    vision = config.vision_config
    high, wide = (side // vision.patch_size for side in vision.image_size)
    numbers = 3 * vision.patch_size**2
    return {
        "pixel_values": torch.zeros(1, high * wide, numbers),
        "image_token_pooling": torch.zeros(1, 4, dtype=torch.int64),
        "image_grids": torch.tensor([[1, 1, 0, 0]]),
    }


MOLMO2 = ModelFamily(encode=_molmo2_encode, stand_in=_molmo2_stand_in, fill=add_rows, since=(5, 20))

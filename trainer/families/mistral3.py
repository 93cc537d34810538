"""Mistral 3 and LightOnOCR with Pixtral's encoder: pictures of their own shape, filled up to the largest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from preshard.trainer.device import to_device
from preshard.trainer.families.family import Features, Inputs, ModelFamily, move_to_model
from preshard.trainer.families.pictures import Arrays, InputUnit, Levels, Settings, image_table, look_up


def _cut(_settings: Settings, units: Sequence[InputUnit]) -> Arrays:
    """``pixel_values``, [images, 3, height, width] of the largest, and ``image_sizes``."""
    if not units:
        return {}
    pictures = [picture.transpose(2, 0, 1) for unit in units for picture in unit.pictures]
    sizes = np.array([picture.shape[1:] for picture in pictures], np.int64)
    pixels = np.zeros((len(pictures), 3, *sizes.max(0)), np.uint8)
    for own, picture in zip(pixels, pictures, strict=True):
        own[:, : picture.shape[1], : picture.shape[2]] = picture
    return {"pixel_values": pixels, "image_sizes": sizes}


def _normalise(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    """Zeros lie right of and below the smaller images."""
    _, _, height, width = levels["pixel_values"].shape
    pixels = look_up(levels["pixel_values"], image_table(settings), height * width)
    high, wide = to_device(levels["image_sizes"], pixels.device).T[:, :, None, None, None]
    rows, columns = (torch.arange(length, device=pixels.device) for length in (height, width))
    return {"pixel_values": pixels.masked_fill_((rows[:, None] >= high) | (columns >= wide), 0.0)}


def _encode(core: Any, inputs: Inputs, *, encoder: str, projector: str) -> Features:
    tower = getattr(core, encoder)
    # The model's own call reads sizes on the device; its two parts take them on the host.
    sizes = inputs["image_sizes"].tolist()
    pixels = move_to_model(core, inputs["pixel_values"])
    patch = tower.patch_size
    edges = torch.tensor([0, *((high // patch) * (wide // patch) for high, wide in sizes)]).cumsum(0)
    patches = tower(pixels, image_sizes=sizes, edges=edges, return_dict=True).last_hidden_state
    rows: Tensor = getattr(core, projector)(patches[0], sizes)
    return rows


def _make_smallest(config: Any) -> dict[str, Tensor]:
    """The patches of one row."""
    side = config.vision_config.patch_size * config.spatial_merge_size
    return {
        "pixel_values": torch.zeros(1, config.vision_config.num_channels, side, side),
        "image_sizes": torch.tensor([[side, side]]),
    }


MODELS = {
    name: ModelFamily(
        cut=_cut,
        normalise=_normalise,
        encode=partial(_encode, encoder=encoder, projector=projector),
        stand_in=_make_smallest,
        side_by_side=True,
    )
    for name, encoder, projector in (
        ("mistral3", "vision_tower", "multi_modal_projector"),
        ("lighton_ocr", "vision_encoder", "vision_projection"),
    )
}

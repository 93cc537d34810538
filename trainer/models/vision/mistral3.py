"""The encoder of Mistral 3, which is Pixtral's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from preshard.trainer.models.interface import OWN_FUNCTIONS
from preshard.trainer.models.vision.family import Features, Inputs, ModelFamily, move_to_model, replace_rows


def _encode(core: Any, inputs: Inputs) -> Features:
    # The model's own call reads sizes on the device; its two parts take them on the host.
    sizes = inputs["image_sizes"].tolist()
    pixels = move_to_model(core, inputs["pixel_values"])
    patches = core.vision_tower(pixels, image_sizes=sizes, return_dict=True).last_hidden_state
    rows: Tensor = core.multi_modal_projector(patches[0], sizes)
    return rows


def _make_smallest(config: Any) -> dict[str, Tensor]:
    """The patches of one row."""
    side = config.vision_config.patch_size * config.spatial_merge_size
    return {
        "pixel_values": torch.zeros(1, config.vision_config.num_channels, side, side),
        "image_sizes": torch.tensor([[side, side]]),
    }


MISTRAL3 = ModelFamily(encode=_encode, stand_in=_make_smallest, fill=replace_rows, since=OWN_FUNCTIONS)

"""InternVL: tiles of one size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from preshard.trainer.families.family import Features, Inputs, ModelFamily, move_to_model
from preshard.trainer.families.pictures import cut_tiles, normalise_tiles


def encode_tiles(core: Any, inputs: Inputs) -> Features:
    """The rows of tiles of one size, tile by tile."""
    pixels = move_to_model(core, inputs["pixel_values"])
    made: Tensor = core.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
    return made.flatten(0, 1)


def _make_smallest(config: Any) -> dict[str, Tensor]:
    return {"pixel_values": torch.zeros(1, config.vision_config.num_channels, *config.vision_config.image_size)}


MODELS = {
    "internvl": ModelFamily(cut=cut_tiles, normalise=normalise_tiles, encode=encode_tiles, stand_in=_make_smallest)
}

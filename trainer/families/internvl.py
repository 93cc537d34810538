"""InternVL: tiles of one size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from preshard.trainer.families.family import Features, Inputs, ModelFamily, move_to_model
from preshard.trainer.families.pictures import cut_tiles, normalise_tiles


def encode_tiles(core: Any, inputs: Inputs) -> Features:
    """The rows of tiles of one size, tile by tile."""
    pixels = move_to_model(core, inputs["pixel_values"])
    made: Tensor = core.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
    return made.flatten(0, 1)


def make_tile(config: Any) -> dict[str, Tensor]:
    """A tile; a configuration says its side, or both."""
    vision = config.vision_config
    return {"pixel_values": torch.zeros(1, vision.num_channels, *np.broadcast_to(vision.image_size, 2).tolist())}


MODELS = {"internvl": ModelFamily(cut=cut_tiles, normalise=normalise_tiles, encode=encode_tiles, stand_in=make_tile)}

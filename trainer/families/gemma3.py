"""Gemma 3: squares of one size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from preshard.trainer.families.family import ModelFamily
from preshard.trainer.families.internvl import encode_tiles
from preshard.trainer.families.pictures import cut_tiles, normalise_tiles


def _make_smallest(config: Any) -> dict[str, Tensor]:
    vision = config.vision_config
    return {"pixel_values": torch.zeros(1, vision.num_channels, vision.image_size, vision.image_size)}


MODELS = {"gemma3": ModelFamily(cut=cut_tiles, normalise=normalise_tiles, encode=encode_tiles, stand_in=_make_smallest)}

"""The encoder of Gemma 3."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from preshard.trainer.models.interface import OWN_FUNCTIONS
from preshard.trainer.models.vision.family import ModelFamily, replace_rows
from preshard.trainer.models.vision.internvl import encode_tiles


def _gemma3_stand_in(config: Any) -> dict[str, Tensor]:
    vision = config.vision_config
    return {"pixel_values": torch.zeros(1, vision.num_channels, vision.image_size, vision.image_size)}


GEMMA3 = ModelFamily(encode=encode_tiles, stand_in=_gemma3_stand_in, fill=replace_rows, since=OWN_FUNCTIONS)
"""Windows hold inside of images only since this version."""

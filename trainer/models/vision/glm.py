"""The encoder of GLM-4.1V, GLM-4.5V and GLM-4.6V."""

from __future__ import annotations

from typing import Any

import torch

from preshard.trainer.models.vision.family import Features, Inputs, ModelFamily, move_to_model, replace_rows
from preshard.trainer.models.vision.qwen import join_kinds, make_smallest


def _encode(core: Any, inputs: Inputs) -> Features:
    pixels, grids = join_kinds(inputs)
    # The encoder takes each pair of frames as an image. It reads the grids where it places patches, on the device.
    pairs = grids.repeat_interleave(grids[:, 0], dim=0)
    pairs[:, 0] = 1
    made = core.get_image_features(move_to_model(core, pixels), move_to_model(core, pairs), return_dict=True)
    return torch.cat(list(made.pooler_output))


GLM = ModelFamily(encode=_encode, stand_in=make_smallest, fill=replace_rows)

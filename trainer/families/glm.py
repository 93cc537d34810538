"""GLM-4.1V, GLM-4.5V and GLM-4.6V: patches of the Qwen-VL models, each pair of frames an image."""

from __future__ import annotations

from typing import Any

import torch

from preshard.trainer.families.family import Features, Inputs, ModelFamily, move_to_model
from preshard.trainer.families.qwen import cut_squares, join_kinds, make_smallest, normalise_squares


def _encode(core: Any, inputs: Inputs) -> Features:
    pixels, grids = join_kinds(inputs)
    # The encoder takes each pair of frames as an image. It reads the grids where it places patches, on the device.
    pairs = grids.repeat_interleave(grids[:, 0], dim=0)
    pairs[:, 0] = 1
    made = core.get_image_features(move_to_model(core, pixels), move_to_model(core, pairs), return_dict=True)
    return torch.cat(list(made.pooler_output))


MODELS = dict.fromkeys(
    ("glm4v", "glm4v_moe", "glm46v"),
    ModelFamily(cut=cut_squares, normalise=normalise_squares, encode=_encode, stand_in=make_smallest),
)

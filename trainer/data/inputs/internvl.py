"""Inputs of InternVL: tiles of images and frames of videos in one array, in the order of the document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from preshard.trainer.data.inputs.normalise import image_table, normalised, video_table
from preshard.trainer.data.inputs.units import InputUnit


def internvl_inputs(settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """``pixel_values``, [tiles, 3, height, width]."""
    if not units:
        return {}
    still, moving = image_table(settings), video_table(settings)
    tiles = [
        normalised(np.stack(unit.pictures), still if unit.kind == "image" else moving).transpose(0, 3, 1, 2)
        for unit in units
    ]
    return {"pixel_values": np.concatenate(tiles)}

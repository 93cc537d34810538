"""Inputs of Qwen2.5-VL and Qwen3-VL: patches in the order of the squares that become rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from preshard.trainer.data.inputs.normalise import Table, image_table, normalised, video_table
from preshard.trainer.data.inputs.units import InputUnit, stills, videos


def qwen_vl_inputs(settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """``pixel_values`` with ``image_grid_thw``, and ``pixel_values_videos`` with ``video_grid_thw``.

    Of a video whose units lie on several ranks, each rank has a grid with as many patches of time as it holds.
    """
    inputs: dict[str, np.ndarray] = {}
    if images := stills(units):
        table = image_table(settings)
        inputs["pixel_values"] = np.concatenate([_patches(settings, unit, table) for unit in images])
        inputs["image_grid_thw"] = np.array([unit.grid for unit in images], np.int64)
    if moving := videos(units):
        table = video_table(settings)
        parts = [_patches(settings, unit, table) for own in moving for unit in own]
        inputs["pixel_values_videos"] = np.concatenate(parts)
        grids = [(sum(unit.grid[0] for unit in own), *own[0].grid[1:]) for own in moving]
        inputs["video_grid_thw"] = np.array(grids, np.int64)
    return inputs


def _patches(settings: Mapping[str, Any], unit: InputUnit, table: Table) -> Float32[np.ndarray, "patches numbers"]:
    """The patches of a unit, square by square; a patch has its colours, and each its frames, rows and columns."""
    patch, merge, together = (settings[name] for name in ("patch_size", "merge_size", "temporal_patch_size"))
    last = (unit.pictures[-1],) * (together - len(unit.pictures))
    pixels = normalised(np.stack([*unit.pictures, *last]), table)
    _, high, wide = unit.grid
    squares = pixels.reshape(together, high // merge, merge, patch, wide // merge, merge, patch, 3)
    return squares.transpose(1, 4, 2, 5, 7, 0, 3, 6).reshape(high * wide, 3 * together * patch * patch)

"""Inputs of Molmo2: crops in patches, and for each row the patches that are pooled into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from preshard.trainer.data.inputs.normalise import Table, image_table, normalised, video_table
from preshard.trainer.data.inputs.units import InputUnit, stills, videos

_NO_PATCH = -1


def molmo2_inputs(settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """Crops, pooling and grids of images, and of videos, under the names that the model gives each."""
    inputs: dict[str, np.ndarray] = {}
    side, patch = settings["side"] // settings["patch_size"], settings["patch_size"]
    if images := stills(units):
        table = image_table(settings)
        pooled, grids, first = [], [], 0
        for unit in images:
            indices, grid = _image_pooling(settings, unit)
            pooled.append(np.where(indices >= 0, indices + first, _NO_PATCH))
            grids.append(grid)
            first += len(unit.pictures) * side * side
        inputs["pixel_values"] = np.concatenate([_patches(unit, table, patch) for unit in images])
        inputs["image_token_pooling"] = np.concatenate(pooled).astype(np.int32)
        inputs["image_grids"] = np.array(grids, np.int64)
        inputs["image_num_crops"] = np.array([len(unit.pictures) for unit in images], np.int64)
    if moving := videos(units):
        table = video_table(settings)
        frames = [unit for own in moving for unit in own]
        indices, (high, wide) = _pooling(np.arange(side * side).reshape(side, side), settings["video_pooling"])
        firsts = (np.arange(len(frames)) * side * side)[:, None, None]
        shifted = np.where(indices >= 0, indices + firsts, _NO_PATCH)
        inputs["pixel_values_videos"] = np.concatenate([_patches(unit, table, patch) for unit in frames])
        inputs["video_token_pooling"] = shifted.reshape(-1, indices.shape[-1])
        inputs["video_grids"] = np.array([(len(own), high, wide) for own in moving], np.int64)
    return inputs


def _patches(unit: InputUnit, table: Table, patch: int) -> Float32[np.ndarray, "crops patches numbers"]:
    pixels = normalised(np.stack(unit.pictures), table)
    crops, height, width, _ = pixels.shape
    split = pixels.reshape(crops, height // patch, patch, width // patch, patch, 3).transpose(0, 1, 3, 2, 4, 5)
    return split.reshape(crops, (height // patch) * (width // patch), patch * patch * 3)


def _image_pooling(
    settings: Mapping[str, Any], unit: InputUnit
) -> tuple[Int[np.ndarray, "rows window"], tuple[int, int, int, int]]:
    """Patches of each row: of the whole image, then of the crops put together, and the rows along each side."""
    side = settings["side"] // settings["patch_size"]
    whole = np.arange(side * side).reshape(side, side)
    low, low_grid = _pooling(whole, settings["image_pooling"])
    parts, grid = _pooling(_crop_patches(settings, unit) + side * side, settings["image_pooling"])
    return np.concatenate([low, parts]), (*low_grid, *grid)


def _crop_patches(settings: Mapping[str, Any], unit: InputUnit) -> Int[np.ndarray, "height width"]:
    """Which patch shows each place of the canvas: where crops overlap, each leaves its margins to its neighbours."""
    side = settings["side"] // settings["patch_size"]
    before, after = settings["overlap_margins"]
    window = side - before - after
    rows, cols = ((length - before - after) // window for length in unit.grid[1:])
    numbers = np.arange(rows * cols * side * side).reshape(rows, cols, side, side)
    lines = [
        np.concatenate(
            [numbers[row, col][_kept(row, rows, settings), :][:, _kept(col, cols, settings)] for col in range(cols)],
            axis=1,
        )
        for row in range(rows)
    ]
    return np.concatenate(lines)


def _kept(place: int, count: int, settings: Mapping[str, Any]) -> slice:
    """Patches of a crop along one side that no neighbour shows better."""
    before, after = settings["overlap_margins"]
    end = settings["side"] // settings["patch_size"] - (after if place < count - 1 else 0)
    return slice(before if place else 0, end)


def _pooling(
    patches: Int[np.ndarray, "height width"], window: Sequence[int]
) -> tuple[Int[np.ndarray, "rows window"], tuple[int, int]]:
    """Patches of each window; where the grid does not divide, both of its ends are filled up with none."""
    high, wide = (-(-length // size) for length, size in zip(patches.shape, window, strict=True))
    missing = [count * size - length for count, size, length in zip((high, wide), window, patches.shape, strict=True)]
    padded = np.pad(patches, [(gap // 2, (gap + 1) // 2) for gap in missing], constant_values=_NO_PATCH)
    windows = padded.reshape(high, window[0], wide, window[1]).transpose(0, 2, 1, 3)
    return windows.reshape(high * wide, window[0] * window[1]), (high, wide)

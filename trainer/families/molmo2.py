"""Molmo2: overlapping crops, whose patches are pooled in windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from preshard.trainer.families.family import Features, Inputs, ModelFamily, add_rows, move_to_model
from preshard.trainer.families.pictures import (
    NO_PATCH,
    Arrays,
    InputUnit,
    Levels,
    Settings,
    cut_patches,
    image_table,
    look_up,
    stills,
    video_table,
    videos,
)


def _cut(settings: Settings, units: Sequence[InputUnit]) -> Arrays:
    """Crops, pooling and grids of images, and of videos, under the names that the model gives each."""
    made: Arrays = {}
    side, patch = settings["side"] // settings["patch_size"], settings["patch_size"]
    if images := stills(units):
        pooled, grids, first = [], [], 0
        for unit in images:
            indices, grid = _image_pooling(settings, unit)
            pooled.append(np.where(indices >= 0, indices + first, NO_PATCH))
            grids.append(grid)
            first += len(unit.pictures) * side * side
        made["pixel_values"] = np.concatenate([cut_patches(unit, patch) for unit in images])
        made["image_token_pooling"] = np.concatenate(pooled).astype(np.int32)
        made["image_grids"] = np.array(grids, np.int64)
        made["image_num_crops"] = np.array([len(unit.pictures) for unit in images], np.int64)
    if moving := videos(units):
        frames = [unit for own in moving for unit in own]
        indices, (high, wide) = _pooling(np.arange(side * side).reshape(side, side), settings["video_pooling"])
        firsts = (np.arange(len(frames)) * side * side)[:, None, None]
        shifted = np.where(indices >= 0, indices + firsts, NO_PATCH)
        made["pixel_values_videos"] = np.concatenate([cut_patches(unit, patch) for unit in frames])
        made["video_token_pooling"] = shifted.reshape(-1, indices.shape[-1])
        made["video_grids"] = np.array([(len(own), high, wide) for own in moving], np.int64)
    return made


def _image_pooling(
    settings: Settings, unit: InputUnit
) -> tuple[Int[np.ndarray, "rows window"], tuple[int, int, int, int]]:
    """Patches of each row: of the whole image, then of the crops put together, and the rows along each side."""
    side = settings["side"] // settings["patch_size"]
    whole = np.arange(side * side).reshape(side, side)
    low, low_grid = _pooling(whole, settings["image_pooling"])
    parts, grid = _pooling(_crop_patches(settings, unit) + side * side, settings["image_pooling"])
    return np.concatenate([low, parts]), (*low_grid, *grid)


def _crop_patches(settings: Settings, unit: InputUnit) -> Int[np.ndarray, "height width"]:
    """The patch that shows each place of the canvas: where crops overlap, each leaves its margins to its neighbours."""
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


def _kept(place: int, count: int, settings: Settings) -> slice:
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
    padded = np.pad(patches, [(gap // 2, (gap + 1) // 2) for gap in missing], constant_values=NO_PATCH)
    windows = padded.reshape(high, window[0], wide, window[1]).transpose(0, 2, 1, 3)
    return windows.reshape(high * wide, window[0] * window[1]), (high, wide)


def _normalise(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    tables = {"pixel_values": image_table, "pixel_values_videos": video_table}
    return {name: look_up(levels[name], table(settings)) for name, table in tables.items() if name in levels}


def _encode(core: Any, inputs: Inputs) -> Features:
    pixels, pooling, grids = _joined(inputs)
    made = core.get_image_features(move_to_model(core, pixels), move_to_model(core, pooling), grids)
    return torch.cat(list(made.pooler_output))


def _joined(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Frames of videos after the crops of images. A row of a frame pools more patches, so rows of images are filled up
    with the number that stands for no patch.
    """
    if "pixel_values_videos" not in inputs:
        return inputs["pixel_values"], inputs["image_token_pooling"].long(), inputs["image_grids"]
    pixels, pooling, moving = (inputs[name] for name in ("pixel_values_videos", "video_token_pooling", "video_grids"))
    frames, high, wide = moving.unbind(1)
    none = torch.zeros_like(wide)
    grids, pooling = torch.stack([frames * high, wide, none, none], dim=1), pooling.long()
    if "pixel_values" not in inputs:
        return pixels, pooling, grids
    stills, of_stills = inputs["pixel_values"], inputs["image_token_pooling"].long()
    width = max(pooling.shape[1], of_stills.shape[1])
    shifted = torch.where(pooling >= 0, pooling + stills.shape[:2].numel(), NO_PATCH)
    parts = [pad(part, (0, width - part.shape[1]), value=NO_PATCH) for part in (of_stills, shifted)]
    return torch.cat([stills, pixels]), torch.cat(parts), torch.cat([inputs["image_grids"], grids])


def _make_smallest(config: Any) -> dict[str, Tensor]:
    vision = config.vision_config
    high, wide = (side // vision.patch_size for side in vision.image_size)
    numbers = 3 * vision.patch_size**2
    return {
        "pixel_values": torch.zeros(1, high * wide, numbers),
        "image_token_pooling": torch.zeros(1, 4, dtype=torch.int64),
        "image_grids": torch.tensor([[1, 1, 0, 0]]),
    }


MODELS = {"molmo2": ModelFamily(cut=_cut, normalise=_normalise, encode=_encode, stand_in=_make_smallest, fill=add_rows)}

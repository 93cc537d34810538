"""A rank's stored pictures as the model's own processor gives them: ``pixel_values`` and what goes with it.

Where a batch is read, pictures are cut into the patches of the encoder, still in levels of 8 bits. Where the model is,
levels become the numbers that it takes (:mod:`preshard.trainer.data.pixels`): a quarter of the bytes travels, or an
eighth where a still stands for two frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8

from preshard.schemas.errors import ReaderError
from preshard.schemas.manifest import UnitKind
from preshard.trainer.data.pixels import MOVING, normalise

Picture = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputUnit:
    """A unit with its stored pictures, in order.

    Attributes:
        document: the document of the pack that shows it.
        medium: which of the document's images and videos it belongs to.
        kind: a still image, a frame, or frames that the encoder takes together.
        grid: patches along time, height and width.
        pictures: RGB, of one size.
    """

    document: int
    medium: int
    kind: UnitKind
    grid: tuple[int, int, int]
    pictures: tuple[Picture, ...]


def stills(units: Sequence[InputUnit]) -> list[InputUnit]:
    """Units that are still images."""
    return [unit for unit in units if unit.kind == "image"]


def videos(units: Sequence[InputUnit]) -> list[list[InputUnit]]:
    """Units of videos, those of one video together."""
    moving = (unit for unit in units if unit.kind != "image")
    return [list(own) for _, own in groupby(moving, key=lambda unit: (unit.document, unit.medium))]


def _qwen_vl_levels(settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """``pixel_values`` with ``image_grid_thw``, and ``pixel_values_videos`` with ``video_grid_thw``.

    Of a video whose units lie on several ranks, each rank has a grid with as many patches of time as it holds.
    """
    made: dict[str, np.ndarray] = {}
    if images := stills(units):
        made["pixel_values"] = np.concatenate([_qwen_patches(settings, unit, 1) for unit in images])
        made["image_grid_thw"] = np.array([unit.grid for unit in images], np.int64)
    if moving := videos(units):
        together = settings["temporal_patch_size"]
        parts = [_qwen_patches(settings, unit, together) for own in moving for unit in own]
        made["pixel_values_videos"] = np.concatenate(parts)
        grids = [(sum(unit.grid[0] for unit in own), *own[0].grid[1:]) for own in moving]
        made["video_grid_thw"] = np.array(grids, np.int64)
    return made


def _qwen_patches(settings: Mapping[str, Any], unit: InputUnit, together: int) -> UInt8[np.ndarray, "patches levels"]:
    """The patches of a unit, square by square; a patch has its colours, and each its frames, rows and columns."""
    patch, merge = settings["patch_size"], settings["merge_size"]
    last = (unit.pictures[-1],) * (together - len(unit.pictures))
    pixels = np.stack([*unit.pictures, *last])
    _, high, wide = unit.grid
    squares = pixels.reshape(together, high // merge, merge, patch, wide // merge, merge, patch, 3)
    return squares.transpose(1, 4, 2, 5, 7, 0, 3, 6).reshape(high * wide, 3 * together * patch * patch)


_NO_PATCH = -1


def _molmo2_levels(settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """Crops, pooling and grids of images, and of videos, under the names that the model gives each."""
    made: dict[str, np.ndarray] = {}
    side, patch = settings["side"] // settings["patch_size"], settings["patch_size"]
    if images := stills(units):
        pooled, grids, first = [], [], 0
        for unit in images:
            indices, grid = _image_pooling(settings, unit)
            pooled.append(np.where(indices >= 0, indices + first, _NO_PATCH))
            grids.append(grid)
            first += len(unit.pictures) * side * side
        made["pixel_values"] = np.concatenate([_molmo_patches(unit, patch) for unit in images])
        made["image_token_pooling"] = np.concatenate(pooled).astype(np.int32)
        made["image_grids"] = np.array(grids, np.int64)
        made["image_num_crops"] = np.array([len(unit.pictures) for unit in images], np.int64)
    if moving := videos(units):
        frames = [unit for own in moving for unit in own]
        indices, (high, wide) = _pooling(np.arange(side * side).reshape(side, side), settings["video_pooling"])
        firsts = (np.arange(len(frames)) * side * side)[:, None, None]
        shifted = np.where(indices >= 0, indices + firsts, _NO_PATCH)
        made["pixel_values_videos"] = np.concatenate([_molmo_patches(unit, patch) for unit in frames])
        made["video_token_pooling"] = shifted.reshape(-1, indices.shape[-1])
        made["video_grids"] = np.array([(len(own), high, wide) for own in moving], np.int64)
    return made


def _molmo_patches(unit: InputUnit, patch: int) -> UInt8[np.ndarray, "crops patches levels"]:
    """A patch has its rows and columns, and each its colours."""
    pixels = np.stack(unit.pictures)
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


def _tile_levels(_settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """``pixel_values``, [tiles, 3, height, width], and which of them are frames of videos."""
    if not units:
        return {}
    moving = [unit.kind != "image" for unit in units for _ in unit.pictures]
    tiles = np.concatenate([np.stack(unit.pictures).transpose(0, 3, 1, 2) for unit in units])
    return {"pixel_values": tiles, MOVING: np.array(moving)}


def _pixtral_levels(_settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """``pixel_values``, [images, 3, height, width] of the largest, and ``image_sizes``."""
    if not units:
        return {}
    pictures = [picture.transpose(2, 0, 1) for unit in units for picture in unit.pictures]
    sizes = np.array([picture.shape[1:] for picture in pictures], np.int64)
    pixels = np.zeros((len(pictures), 3, *sizes.max(0)), np.uint8)
    for own, picture in zip(pixels, pictures, strict=True):
        own[:, : picture.shape[1], : picture.shape[2]] = picture
    return {"pixel_values": pixels, "image_sizes": sizes}


def _gemma4_levels(settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """Patches of each picture and their columns and rows, filled up to the most that a picture has."""
    made: dict[str, np.ndarray] = {}
    if images := stills(units):
        patches = [_gemma4_patches(settings, unit, settings["image_patches"]) for unit in images]
        made["pixel_values"], made["image_position_ids"] = map(np.stack, zip(*patches, strict=True))
    if moving := videos(units):
        patches = [_gemma4_patches(settings, unit, settings["video_patches"]) for own in moving for unit in own]
        made["pixel_values_videos"], made["video_position_ids"] = map(np.stack, zip(*patches, strict=True))
        made["num_frames_per_video"] = np.array([len(own) for own in moving], np.int64)
    return made


def _gemma4_patches(
    settings: Mapping[str, Any], unit: InputUnit, most: int
) -> tuple[UInt8[np.ndarray, "most levels"], Int[np.ndarray, "most 2"]]:
    [pixels] = _molmo_patches(unit, settings["patch_size"])
    _, high, wide = unit.grid
    places = np.stack(np.meshgrid(np.arange(wide), np.arange(high)), axis=-1).reshape(-1, 2)
    missing = ((0, most - len(pixels)), (0, 0))
    return np.pad(pixels, missing), np.pad(places, missing, constant_values=_NO_PATCH)


BUILDERS: dict[str, Callable[[Mapping[str, Any], Sequence[InputUnit]], dict[str, np.ndarray]]] = {
    "qwen_vl": _qwen_vl_levels,
    "molmo2": _molmo2_levels,
    "internvl": _tile_levels,
    "gemma3": _tile_levels,
    "pixtral": _pixtral_levels,
    "gemma4": _gemma4_levels,
}
"""What cuts pictures, by the ``inputs`` of the manifest's settings."""


def picture_levels(settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """The vision inputs of some units in the model's own names, pixels still in levels; see :func:`model_inputs`.

    Raises:
        ReaderError: the dataset was packed for no model, or for one that reads only text or that is not known.
    """
    name = settings.get("inputs")
    if name is None:
        raise ReaderError(
            "model inputs: the dataset was not packed for a model that reads images; pack it with --set model=DIR"
        )
    if name not in BUILDERS:
        raise ReaderError(
            f"model inputs: the manifest's settings have inputs {name!r}; take a dataset with one of "
            f"{', '.join(BUILDERS)}, or a newer version of preshard"
        )
    return BUILDERS[name](settings, units)


def model_inputs(settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """The vision inputs of some units in the model's own names, float32 and int64, as its processor gives them.

    They are equal bit for bit if pictures are stored as PNG. Without units there are none.

    Args:
        settings: the family's, as the manifest has them.
        units: the units of a rank, in order.

    Raises:
        ReaderError: the dataset was packed for no model, or for one that reads only text or that is not known.
    """
    levels = {name: torch.from_numpy(array) for name, array in picture_levels(settings, units).items()}
    return {name: tensor.numpy() for name, tensor in normalise(settings, levels).items()}

"""A rank's stored pictures on their way to an encoder: what families have in common.

Where a batch is read, pictures are cut into the patches of the encoder, still in levels of 8 bits. Where the model is,
levels become the numbers that it takes: a quarter of the bytes travels, or an eighth where a still stands for two
frames. Numbers have the rounding of the processor that the model has. There are only 256 levels for each colour, so
each is computed once, in the order of operations of ``transformers``: its processors on Pillow and NumPy divide by 255
first, those on torchvision fold that into mean and deviation. A device only looks them up, so all devices give the same
bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from preshard.schemas.manifest import UnitKind
from preshard.trainer.device import to_device

Settings = Mapping[str, Any]
Levels = Mapping[str, Tensor]
"""A rank's vision inputs in the model's own names, pixels in levels: see ``family.picture_levels``."""

Arrays = dict[str, np.ndarray]
"""The same where a batch is read."""

MOVING = "is_moving"
"""Key among the levels of tiles that says which are frames of a video. No input of a model."""

NO_PATCH = -1
"""Stands where a window or a picture has fewer patches."""

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


def cut_patches(unit: InputUnit, patch: int) -> UInt8[np.ndarray, "crops patches levels"]:
    """A patch has its rows and columns, and each its colours."""
    pixels = np.stack(unit.pictures)
    crops, height, width, _ = pixels.shape
    split = pixels.reshape(crops, height // patch, patch, width // patch, patch, 3).transpose(0, 1, 3, 2, 4, 5)
    return split.reshape(crops, (height // patch) * (width // patch), patch * patch * 3)


def cut_tiles(_settings: Settings, units: Sequence[InputUnit]) -> Arrays:
    """``pixel_values``, [tiles, 3, height, width], and which of them are frames of videos."""
    if not units:
        return {}
    moving = [unit.kind != "image" for unit in units for _ in unit.pictures]
    tiles = np.concatenate([np.stack(unit.pictures).transpose(0, 3, 1, 2) for unit in units])
    return {"pixel_values": tiles, MOVING: np.array(moving)}


_LEVELS = np.arange(256)
_RESCALE = 1 / 255

Table = Float32[np.ndarray, "256 3"]


def image_table(settings: Settings) -> Table:
    """Values that the image processor of a manifest's settings makes of each level of each colour of a still."""
    of_backend = {"torchvision": _torch_table, "pil": _numpy_table}[settings["image_backend"]]
    return of_backend(tuple(settings["image_mean"]), tuple(settings["image_std"]))


def video_table(settings: Settings) -> Table:
    """The same of a video. All video processors are on torchvision."""
    return _torch_table(tuple(settings["video_mean"]), tuple(settings["video_std"]))


def rescaled_table(backend: str) -> Table:
    """Values that a processor which does not normalise makes of each level. One on NumPy multiplies in float64."""
    if backend == "pil":
        rescaled = (_LEVELS.astype(np.float64) * _RESCALE).astype(np.float32)
    else:
        rescaled = _LEVELS.astype(np.float32) * np.float32(_RESCALE)
    return np.repeat(rescaled[:, None], 3, axis=1)


@lru_cache(maxsize=8)
def _numpy_table(mean: tuple[float, ...], deviation: tuple[float, ...]) -> Table:
    """Values that a processor on NumPy makes of each level of each colour."""
    rescaled = rescaled_table("pil")
    return (rescaled - np.array(mean, np.float32)) / np.array(deviation, np.float32)


@lru_cache(maxsize=8)
def _torch_table(mean: tuple[float, ...], deviation: tuple[float, ...]) -> Table:
    """Values that a processor on torch makes of each level of each colour."""
    factor = np.float32(1 / _RESCALE)
    levels = _LEVELS.astype(np.float32)[:, None]
    return (levels - np.array(mean, np.float32) * factor) / (np.array(deviation, np.float32) * factor)


def look_up(levels: UInt8[Tensor, "*shape"], table: Table, neighbours: int = 1) -> Float32[Tensor, "*shape"]:
    """Replaces each level by its value. So many levels of one colour lie side by side, then those of the next."""
    colours = torch.arange(0, table.size, len(table), dtype=torch.int32, device=levels.device)
    index = levels.reshape(-1, 3, neighbours).int() + colours[:, None]
    found = to_device(torch.from_numpy(table.T.flatten()), levels.device).index_select(0, index.flatten())
    return found.view(levels.shape)


def normalise_tiles(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    """``pixel_values`` of tiles, of which frames may have other colours."""
    tiles, moving = levels["pixel_values"], levels[MOVING]
    still, video, area = image_table(settings), video_table(settings), tiles.shape[2] * tiles.shape[3]
    pixels = look_up(tiles, still, area)
    if bool(moving.any()) and not np.array_equal(still, video):
        is_video = to_device(moving, tiles.device)[:, None, None, None]
        pixels = torch.where(is_video, look_up(tiles, video, area), pixels)
    return {"pixel_values": pixels}

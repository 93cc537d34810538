"""Levels of 8 bits become the numbers that an encoder takes, where the model is.

Numbers have the rounding of the processor that the model has. There are only 256 levels for each colour, so each is
computed once, in the order of operations of ``transformers``: its processors on Pillow and NumPy divide by 255 first,
those on torchvision fold that into mean and deviation. A device only looks them up, so all devices give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

Settings = Mapping[str, Any]
Levels = Mapping[str, Tensor]
"""A rank's vision inputs in the model's own names, pixels in levels: see ``inputs.picture_levels``."""

MOVING = "is_moving"
"""Among the levels of tiles: which are frames of a video. No input of a model."""

PAGE_LOCKED = ("cuda",)
"""Types of devices that copy from page-locked memory while the host goes on."""


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor on a device, without making the host wait: it leaves the host from page-locked memory."""
    target = torch.device(device)
    if tensor.device.type == "cpu" and target.type in PAGE_LOCKED:
        tensor = tensor.pin_memory()  # the same tensor if it is page-locked already
    return tensor.to(target, non_blocking=target.type != "cpu")


_LEVELS = np.arange(256)
_RESCALE = 1 / 255

Table = Float32[np.ndarray, "256 3"]


def image_table(settings: Settings) -> Table:
    """What the image processor of a manifest's settings makes of each level of each colour of a still."""
    of_backend = {"torchvision": _torch_table, "pil": _numpy_table}[settings["image_backend"]]
    return of_backend(tuple(settings["image_mean"]), tuple(settings["image_std"]))


def video_table(settings: Settings) -> Table:
    """The same of a video. All video processors are on torchvision."""
    return _torch_table(tuple(settings["video_mean"]), tuple(settings["video_std"]))


def _rescaled_table(backend: str) -> Table:
    """What a processor that does not normalise makes of each level. One on NumPy multiplies in float64."""
    if backend == "pil":
        rescaled = (_LEVELS.astype(np.float64) * _RESCALE).astype(np.float32)
    else:
        rescaled = _LEVELS.astype(np.float32) * np.float32(_RESCALE)
    return np.repeat(rescaled[:, None], 3, axis=1)


@lru_cache(maxsize=8)
def _numpy_table(mean: tuple[float, ...], deviation: tuple[float, ...]) -> Table:
    """What a processor on NumPy makes of each level of each colour."""
    rescaled = _rescaled_table("pil")
    return (rescaled - np.array(mean, np.float32)) / np.array(deviation, np.float32)


@lru_cache(maxsize=8)
def _torch_table(mean: tuple[float, ...], deviation: tuple[float, ...]) -> Table:
    """What a processor on torch makes of each level of each colour."""
    factor = np.float32(1 / _RESCALE)
    levels = _LEVELS.astype(np.float32)[:, None]
    return (levels - np.array(mean, np.float32) * factor) / (np.array(deviation, np.float32) * factor)


def _numbers(levels: UInt8[Tensor, "*shape"], table: Table, neighbours: int = 1) -> Float32[Tensor, "*shape"]:
    """What each level becomes. So many levels of one colour lie side by side, then those of the next."""
    colours = torch.arange(0, table.size, len(table), dtype=torch.int32, device=levels.device)
    index = levels.reshape(-1, 3, neighbours).int() + colours[:, None]
    found = to_device(torch.from_numpy(table.T.flatten()), levels.device).index_select(0, index.flatten())
    return found.view(levels.shape)


def _qwen_vl(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    """A still stands for as many frames as the encoder takes together."""
    together, area, made = settings["temporal_patch_size"], settings["patch_size"] ** 2, {}
    if "pixel_values" in levels:
        pixels = _numbers(levels["pixel_values"], image_table(settings), area)
        made["pixel_values"] = pixels.view(-1, 3, 1, area).expand(-1, -1, together, -1).flatten(1)
    if "pixel_values_videos" in levels:
        made["pixel_values_videos"] = _numbers(levels["pixel_values_videos"], video_table(settings), together * area)
    return made


def _molmo2(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    tables = {"pixel_values": image_table, "pixel_values_videos": video_table}
    return {name: _numbers(levels[name], table(settings)) for name, table in tables.items() if name in levels}


def _tiles(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    tiles, moving = levels["pixel_values"], levels[MOVING]
    still, video, area = image_table(settings), video_table(settings), tiles.shape[2] * tiles.shape[3]
    pixels = _numbers(tiles, still, area)
    if bool(moving.any()) and not np.array_equal(still, video):
        is_video = to_device(moving, tiles.device)[:, None, None, None]
        pixels = torch.where(is_video, _numbers(tiles, video, area), pixels)
    return {"pixel_values": pixels}


def _pixtral(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    """Zeros lie right of and below the smaller images."""
    _, _, height, width = levels["pixel_values"].shape
    pixels = _numbers(levels["pixel_values"], image_table(settings), height * width)
    high, wide = to_device(levels["image_sizes"], pixels.device).T[:, :, None, None, None]
    rows, columns = (torch.arange(length, device=pixels.device) for length in (height, width))
    return {"pixel_values": pixels.masked_fill_((rows[:, None] >= high) | (columns >= wide), 0.0)}


def _gemma4(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    """What fills a picture up is 0."""
    names = {
        "pixel_values": ("image_position_ids", image_table, "image_normalised", settings["image_backend"]),
        "pixel_values_videos": ("video_position_ids", video_table, "video_normalised", "torchvision"),
    }
    made = {}
    for name, (places, of_settings, normalised, backend) in names.items():
        if name in levels:
            table = of_settings(settings) if settings[normalised] else _rescaled_table(backend)
            pixels = _numbers(levels[name], table)
            made[name] = pixels.masked_fill_(to_device(levels[places], pixels.device)[..., :1] < 0, 0.0)
    return made


_OF_INPUTS: dict[str, Callable[[Settings, Levels], dict[str, Tensor]]] = {
    "qwen_vl": _qwen_vl,
    "molmo2": _molmo2,
    "internvl": _tiles,
    "gemma3": _tiles,
    "pixtral": _pixtral,
    "gemma4": _gemma4,
}


def normalise(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    """The model's inputs from their levels: pixels in float32 where their levels are, all else as it is.

    Args:
        settings: the family's, as the manifest has them.
        levels: of some units; empty without any.
    """
    made = _OF_INPUTS[settings["inputs"]](settings, levels) if levels else {}
    return {name: tensor for name, tensor in levels.items() if name != MOVING} | made

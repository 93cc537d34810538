"""Pixels of 8 bits to the numbers that an encoder takes, with the rounding of the processor that the model has.

There are only 256 values for each colour, so each is computed once, in the order of operations of ``transformers``:
its processors on Pillow and NumPy divide by 255 first, those on torchvision fold that into mean and deviation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8

_LEVELS = np.arange(256)
_RESCALE = 1 / 255

Table = Float32[np.ndarray, "256 3"]


def image_table(settings: Mapping[str, Any]) -> Table:
    """What the image processor of a manifest's settings makes of each level of each colour of a still."""
    of_backend = {"torchvision": _torch_table, "pil": _numpy_table}[settings["image_backend"]]
    return of_backend(tuple(settings["image_mean"]), tuple(settings["image_std"]))


def video_table(settings: Mapping[str, Any]) -> Table:
    """The same of a video. All video processors are on torchvision."""
    return _torch_table(tuple(settings["video_mean"]), tuple(settings["video_std"]))


@lru_cache(maxsize=8)
def _numpy_table(mean: tuple[float, ...], deviation: tuple[float, ...]) -> Table:
    """What a processor on NumPy makes of each level of each colour."""
    rescaled = (_LEVELS.astype(np.float64) * _RESCALE).astype(np.float32)[:, None]
    return (rescaled - np.array(mean, np.float32)) / np.array(deviation, np.float32)


@lru_cache(maxsize=8)
def _torch_table(mean: tuple[float, ...], deviation: tuple[float, ...]) -> Table:
    """What a processor on torch makes of each level of each colour."""
    factor = np.float32(1 / _RESCALE)
    levels = _LEVELS.astype(np.float32)[:, None]
    return (levels - np.array(mean, np.float32) * factor) / (np.array(deviation, np.float32) * factor)


def normalised(pixels: UInt8[np.ndarray, "... 3"], table: Table) -> Float32[np.ndarray, "... 3"]:
    """Each pixel's three colours by their tables."""
    return np.stack([table[pixels[..., colour], colour] for colour in range(3)], axis=-1)

"""Gemma 4: pictures of their own shape, each filled up to as many patches as one may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.nn.functional import pad

from preshard.trainer.device import to_device
from preshard.trainer.families.family import Features, Inputs, ModelFamily, Slots, Tokens, move_to_model
from preshard.trainer.families.pictures import (
    NO_PATCH,
    Arrays,
    InputUnit,
    Levels,
    Settings,
    cut_patches,
    image_table,
    look_up,
    rescaled_table,
    stills,
    video_table,
    videos,
)


def _cut(settings: Settings, units: Sequence[InputUnit]) -> Arrays:
    """Patches of each picture and their columns and rows, filled up to the most that a picture has."""
    made: Arrays = {}
    if images := stills(units):
        patches = [_patches(settings, unit, settings["image_patches"]) for unit in images]
        made["pixel_values"], made["image_position_ids"] = map(np.stack, zip(*patches, strict=True))
    if moving := videos(units):
        patches = [_patches(settings, unit, settings["video_patches"]) for own in moving for unit in own]
        made["pixel_values_videos"], made["video_position_ids"] = map(np.stack, zip(*patches, strict=True))
        made["num_frames_per_video"] = np.array([len(own) for own in moving], np.int64)
    return made


def _patches(
    settings: Settings, unit: InputUnit, most: int
) -> tuple[UInt8[np.ndarray, "most levels"], Int[np.ndarray, "most 2"]]:
    [pixels] = cut_patches(unit, settings["patch_size"])
    _, high, wide = unit.grid
    places = np.stack(np.meshgrid(np.arange(wide), np.arange(high)), axis=-1).reshape(-1, 2)
    missing = ((0, most - len(pixels)), (0, 0))
    return np.pad(pixels, missing), np.pad(places, missing, constant_values=NO_PATCH)


def _normalise(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    """Normalises pixels; what fills a picture up is 0."""
    names = {
        "pixel_values": ("image_position_ids", image_table, "image_normalised", settings["image_backend"]),
        "pixel_values_videos": ("video_position_ids", video_table, "video_normalised", "torchvision"),
    }
    made = {}
    for name, (places, of_settings, normalised, backend) in names.items():
        if name in levels:
            table = of_settings(settings) if settings[normalised] else rescaled_table(backend)
            pixels = look_up(levels[name], table)
            made[name] = pixels.masked_fill_(to_device(levels[places], pixels.device)[..., :1] < 0, 0.0)
    return made


def _encode(core: Any, inputs: Inputs) -> Features:
    pixels, places = _joined(inputs)
    made = core.vision_tower(
        pixel_values=move_to_model(core, pixels), pixel_position_ids=move_to_model(core, places), return_dict=True
    )
    rows: Tensor = core.embed_vision(inputs_embeds=made.last_hidden_state)
    return rows


def _joined(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Pictures of images, then of videos, each with as many patches as the largest has."""
    names = ("pixel_values", "image_position_ids"), ("pixel_values_videos", "video_position_ids")
    given = [(inputs[pixels], inputs[places]) for pixels, places in names if pixels in inputs]
    most = max(int((places >= 0).all(-1).sum(1).max()) for _, places in given)
    pixels, places = zip(*[_sized(*each, most) for each in given], strict=True)
    return torch.cat(pixels), torch.cat(places)


def _sized(pixels: Tensor, places: Tensor, most: int) -> tuple[Tensor, Tensor]:
    more = max(0, most - pixels.shape[1])
    return pad(pixels[:, :most], (0, 0, 0, more)), pad(places[:, :most], (0, 0, 0, more), value=-1)


def _make_smallest(config: Any) -> dict[str, Tensor]:
    vision = config.vision_config
    side = torch.arange(vision.pooling_kernel_size)
    places = torch.cartesian_prod(side, side)[None]
    return {
        "pixel_values": torch.zeros(1, places.shape[1], 3 * vision.patch_size**2),
        "image_position_ids": places,
    }


def _from_tokens(core: Any, tokens: Tokens, slots: Slots) -> dict[str, Any]:
    """The embeddings that E2B and E4B give to each layer. Where a row fills a token, they are those of padding."""
    text = core.language_model
    if not text.config.hidden_size_per_layer_input:
        return {}
    return {"per_layer_inputs": text.get_per_layer_inputs(tokens.index_fill(0, slots, text.config.pad_token_id)[None])}


MODELS = {
    "gemma4": ModelFamily(
        cut=_cut,
        normalise=_normalise,
        encode=_encode,
        stand_in=_make_smallest,
        from_tokens=_from_tokens,
        unused=("audio_tower", "embed_audio"),
    )
}

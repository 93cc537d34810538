"""The encoders of Gemma 3 and 4."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from preshard.trainer.models.interface import OWN_FUNCTIONS
from preshard.trainer.models.vision.family import (
    Features,
    Inputs,
    ModelFamily,
    Slots,
    Tokens,
    move_to_model,
    replace_rows,
)
from preshard.trainer.models.vision.internvl import encode_tiles


def _gemma3_stand_in(config: Any) -> dict[str, Tensor]:
    vision = config.vision_config
    return {"pixel_values": torch.zeros(1, vision.num_channels, vision.image_size, vision.image_size)}


GEMMA3 = ModelFamily(encode=encode_tiles, stand_in=_gemma3_stand_in, fill=replace_rows, since=OWN_FUNCTIONS)
"""Windows hold inside of images only since this version."""


def _gemma4_encode(core: Any, inputs: Inputs) -> Features:
    pixels, places = _gemma4_joined(inputs)
    made = core.vision_tower(
        pixel_values=move_to_model(core, pixels), pixel_position_ids=move_to_model(core, places), return_dict=True
    )
    rows: Tensor = core.embed_vision(inputs_embeds=made.last_hidden_state)
    return rows


def _gemma4_joined(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Pictures of images, then of videos, each with as many patches as the largest has."""
    names = ("pixel_values", "image_position_ids"), ("pixel_values_videos", "video_position_ids")
    given = [(inputs[pixels], inputs[places]) for pixels, places in names if pixels in inputs]
    most = max(int((places >= 0).all(-1).sum(1).max()) for _, places in given)
    pixels, places = zip(*[_gemma4_sized(*each, most) for each in given], strict=True)
    return torch.cat(pixels), torch.cat(places)


def _gemma4_sized(pixels: Tensor, places: Tensor, most: int) -> tuple[Tensor, Tensor]:
    more = max(0, most - pixels.shape[1])
    return pad(pixels[:, :most], (0, 0, 0, more)), pad(places[:, :most], (0, 0, 0, more), value=-1)


def _gemma4_stand_in(config: Any) -> dict[str, Tensor]:
    vision = config.vision_config
    side = torch.arange(vision.pooling_kernel_size)
    places = torch.cartesian_prod(side, side)[None]
    return {
        "pixel_values": torch.zeros(1, places.shape[1], 3 * vision.patch_size**2),
        "image_position_ids": places,
    }


def _gemma4_from_tokens(core: Any, tokens: Tokens, slots: Slots) -> dict[str, Any]:
    """The embeddings that E2B and E4B give to each layer. Where a row fills a token, they are those of padding."""
    text = core.language_model
    if not text.config.hidden_size_per_layer_input:
        return {}
    return {"per_layer_inputs": text.get_per_layer_inputs(tokens.index_fill(0, slots, text.config.pad_token_id)[None])}


GEMMA4 = ModelFamily(
    encode=_gemma4_encode,
    stand_in=_gemma4_stand_in,
    fill=replace_rows,
    from_tokens=_gemma4_from_tokens,
    unused=("audio_tower", "embed_audio"),
    since=OWN_FUNCTIONS,
)

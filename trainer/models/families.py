"""What differs between families of vision-language models: how features are made, and how they are handed in.

A row has one vector, or several side by side: that of the last layer, then those of Qwen3-VL's deep layers. So a rank's
features are one matrix, which one exchange moves, whatever the family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from schemas.errors import ConfigError

NO_PATCH = -1
"""Stands in Molmo2's pooling where a window has fewer patches."""

Inputs = Mapping[str, Tensor]
"""A rank's vision inputs in the model's own names: ``RankBatch.model_inputs()``."""

Features = Float[Tensor, "rows wide"]
Marks = dict[str, Bool[Tensor, "local"]]
"""For ``image`` and ``video``, as far as the model tells them apart: which tokens are filled by their rows."""


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A kind of vision-language model.

    Attributes:
        encode: features of a rank's images, then of its videos, by one call of the encoder: where its parameters are
            sharded, each call is a collective, and ranks hold different kinds.
        stand_in: the smallest inputs that the encoder takes, for a rank that holds no unit.
        marks: which tokens are filled.
        hand_in: features of one kind, as the model takes them from elsewhere. They are in the order of tokens.
        extra: more arguments of the model's call.
    """

    encode: Callable[[Any, Inputs], Features]
    stand_in: Callable[[Any], dict[str, Tensor]]
    marks: Callable[[Any, Int64[Tensor, "local"]], Marks]
    hand_in: Callable[[Features, int], Any]
    extra: Callable[[Int64[Tensor, "local"]], dict[str, Tensor]] = lambda _tokens: {}


def _outputs(features: Any, **more: Any) -> Any:
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    outputs = BaseModelOutputWithPooling(pooler_output=features)
    for name, value in more.items():
        setattr(outputs, name, value)
    return outputs


def _qwen_encode(core: Any, inputs: Inputs) -> Features:
    # Images and videos have the same kind of patches and go through the same encoder.
    names = ("pixel_values", "pixel_values_videos"), ("image_grid_thw", "video_grid_thw")
    pixels, grids = (torch.cat([inputs[name] for name in both if name in inputs]) for both in names)
    made = core.get_image_features(pixels, grids, return_dict=True)
    deep = getattr(made, "deepstack_features", None) or ()
    return torch.cat([torch.cat(list(layer)) for layer in (made.pooler_output, *deep)], dim=1)


def _qwen_stand_in(config: Any) -> dict[str, Tensor]:
    vision = config.vision_config
    merge = vision.spatial_merge_size
    numbers = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return {"pixel_values": torch.zeros(merge**2, numbers), "image_grid_thw": torch.tensor([[1, merge, merge]])}


def _qwen_marks(config: Any, tokens: Int64[Tensor, "local"]) -> Marks:
    return {"image": tokens == config.image_token_id, "video": tokens == config.video_token_id}


def _qwen_hand_in(features: Features, width: int) -> Any:
    last, *deep = features.split(width, dim=1)
    return _outputs((last,), deepstack_features=[(layer,) for layer in deep])


def _internvl_encode(core: Any, inputs: Inputs) -> Features:
    pixels = inputs["pixel_values"]
    made: Tensor = core.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
    return made.flatten(0, 1)


def _internvl_stand_in(config: Any) -> dict[str, Tensor]:
    return {"pixel_values": torch.zeros(1, config.vision_config.num_channels, *config.vision_config.image_size)}


def _one_mark(config: Any, tokens: Int64[Tensor, "local"]) -> Marks:
    return {"image": tokens == config.image_token_id}


def _internvl_hand_in(features: Features, _width: int) -> Any:
    return _outputs(features[None])


def _molmo2_encode(core: Any, inputs: Inputs) -> Features:
    made = core.get_image_features(*_molmo2_joined(inputs))
    return torch.cat(list(made.pooler_output))


def _molmo2_joined(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
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


def _molmo2_stand_in(config: Any) -> dict[str, Tensor]:
    vision = config.vision_config
    high, wide = (side // vision.patch_size for side in vision.image_size)
    numbers = 3 * vision.patch_size**2
    return {
        "pixel_values": torch.zeros(1, high * wide, numbers),
        "image_token_pooling": torch.zeros(1, 4, dtype=torch.int64),
        "image_grids": torch.tensor([[1, 1, 0, 0]]),
    }


def _no_types(tokens: Int64[Tensor, "local"]) -> dict[str, Tensor]:
    # Molmo2 asks for them in training, to make the mask that packs have already.
    return {"mm_token_type_ids": torch.zeros_like(tokens)[None]}


def _tuple_hand_in(features: Features, _width: int) -> Any:
    return _outputs((features,))


_QWEN = ModelFamily(encode=_qwen_encode, stand_in=_qwen_stand_in, marks=_qwen_marks, hand_in=_qwen_hand_in)

FAMILIES: dict[str, ModelFamily] = {
    "qwen3_vl": _QWEN,
    "qwen3_vl_moe": _QWEN,
    "qwen2_5_vl": _QWEN,
    "internvl": ModelFamily(
        encode=_internvl_encode,
        stand_in=_internvl_stand_in,
        marks=_one_mark,
        hand_in=_internvl_hand_in,
    ),
    "molmo2": ModelFamily(
        encode=_molmo2_encode,
        stand_in=_molmo2_stand_in,
        marks=_one_mark,
        hand_in=_tuple_hand_in,
        extra=_no_types,
    ),
}
"""Vision-language models by the ``model_type`` of their configuration."""


def family_of(config: Any) -> ModelFamily | None:
    """The family of a model's configuration; None if it reads only text.

    Raises:
        ConfigError: it reads images, and is of none of :data:`FAMILIES`.
    """
    if config.model_type in FAMILIES:
        return FAMILIES[config.model_type]
    if config.get_text_config() is config:
        return None
    raise ConfigError(
        f"--model: model_type {config.model_type!r} is not supported; take a causal language model of text, or one of "
        f"{', '.join(FAMILIES)}"
    )

"""What differs between families of vision-language models: how features are made, and how they reach their tokens.

A row has one vector, or several side by side: that of the last layer, then those of Qwen3-VL's deep layers. So a rank's
features are one matrix, which one exchange moves, whatever the family.

Sizes and places of units are on the host, where they are known. The encoders of ``transformers`` work them out from the
grids, wherever these lie; on a device the host would wait for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from preshard.schemas.errors import ConfigError
from preshard.trainer.models.interface import PLACES, Version, has_transformers

NO_PATCH = -1
"""Stands in Molmo2's pooling where a window has fewer patches."""

Inputs = Mapping[str, Tensor]
"""A rank's vision inputs in the model's own names, on the CPU: ``RankBatch.model_inputs()``."""

Features = Float[Tensor, "rows wide"]
Hidden = Float[Tensor, "local hidden"]
Slots = Int64[Tensor, "rows"]


def by_layer(features: Features, width: int) -> list[Float[Tensor, "rows hidden"]]:
    """The vectors of each row: those for the embeddings, then those for the first layers of the language model."""
    return list(features.split(width, dim=1))


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A kind of vision-language model.

    Attributes:
        encode: features of a rank's images, then of its videos, by one call of the encoder: where its parameters are
            sharded, each call is a collective, and ranks hold different kinds. Inputs are on the CPU, features where
            the model is.
        stand_in: the smallest inputs that the encoder takes, for a rank that holds no unit.
        fill: embeddings of the local tokens with rows in the slots that they fill.
        layers: which part of the features is for which layer.
        since: the first version of ``transformers`` that has it.
    """

    encode: Callable[[Any, Inputs], Features]
    stand_in: Callable[[Any], dict[str, Tensor]]
    fill: Callable[[Hidden, Slots, Features], Hidden]
    layers: Callable[[Features, int], list[Features]] = by_layer
    since: Version = (5, 0)

    def embedded(self, embeddings: Hidden, features: Features, slots: Slots) -> dict[str, Any]:
        """Tokens and features as arguments of the language model's call, in place of token ids.

        ``transformers`` would look for the tokens that the features fill, once for each kind of unit and once for each
        deep layer, and the host would wait for the answer. The pack says where they are.

        Args:
            embeddings: of this rank's tokens.
            features: of the rows that fill some of them.
            slots: the token that each row fills.
        """
        first, *deep = self.layers(features.to(embeddings.dtype), embeddings.shape[-1])
        given: dict[str, Any] = {"inputs_embeds": self.fill(embeddings, slots, first)[None]}
        if deep:
            # Layers take this as an index of what they add to. Of the sequences, the only one has all tokens.
            given["visual_pos_masks"] = torch.zeros(1, dtype=torch.int64, device=embeddings.device)
            nothing = torch.zeros_like(embeddings)
            given["deepstack_visual_embeds"] = [nothing.index_copy(0, slots, layer)[None] for layer in deep]
        return given


def _replaced(embeddings: Hidden, slots: Slots, features: Features) -> Hidden:
    return embeddings.index_copy(0, slots, features)


def _added(embeddings: Hidden, slots: Slots, features: Features) -> Hidden:
    return embeddings.index_add(0, slots, features)


def _there(core: Any, tensor: Tensor) -> Tensor:
    """A tensor of the host where a model is. Only from page-locked memory a device takes it without waiting."""
    device = next(core.parameters()).device
    on_host = tensor.device.type == "cpu" and device.type == "cuda"
    return (tensor.pin_memory() if on_host else tensor).to(device, non_blocking=True)


def _qwen_encode(core: Any, inputs: Inputs, *, places: Callable[[Any, Tensor], dict[str, Tensor]]) -> Features:
    # Images and videos have the same kind of patches and go through the same encoder.
    names = ("pixel_values", "pixel_values_videos"), ("image_grid_thw", "video_grid_thw")
    pixels, grids = (torch.cat([inputs[name] for name in both if name in inputs]) for both in names)
    if has_transformers(PLACES):
        given = places(core, grids)
    else:  # the encoder works them out where the grids are
        grids, given = _there(core, grids), {}
    made = core.get_image_features(_there(core, pixels), grids, return_dict=True, **given)
    deep = getattr(made, "deepstack_features", None) or ()
    layers = [layer if isinstance(layer, Tensor) else torch.cat(layer) for layer in (made.pooler_output, *deep)]
    return torch.cat(layers, dim=1)


def _qwen3_places(core: Any, grids: Tensor) -> dict[str, Tensor]:
    """What the encoder works out of grids, and takes if it is there already: places of patches among learnt ones."""
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

    tower = core.visual
    indices, weights = get_vision_interpolation_indices_and_weights(
        grids,
        num_grid_per_side=tower.num_grid_per_side,
        mode=tower.interpolation_mode,
        align_corners=tower.interpolation_align_corners,
        spatial_merge_size=tower.spatial_merge_size,
    )
    found = {
        "position_ids": get_vision_position_ids(grids, tower.spatial_merge_size),
        "interp_indices": indices,
        "interp_weights": weights,
    }
    return {name: _there(core, tensor) for name, tensor in found.items()}


def _qwen2_5_places(core: Any, grids: Tensor) -> dict[str, Tensor]:
    """The same for an encoder whose attention is in windows. Their edges stay on the host, which cuts at them."""
    from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

    tower = core.visual
    order, edges = get_vision_window_index(
        grids,
        spatial_merge_size=tower.spatial_merge_size,
        window_size=tower.window_size,
        patch_size=tower.patch_size,
    )
    positions = get_vision_position_ids(grids, tower.spatial_merge_size)
    return {
        "position_ids": _there(core, positions),
        "window_index": _there(core, order),
        "cu_window_seqlens": edges,
    }


def _qwen_stand_in(config: Any) -> dict[str, Tensor]:
    vision = config.vision_config
    merge = vision.spatial_merge_size
    numbers = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return {"pixel_values": torch.zeros(merge**2, numbers), "image_grid_thw": torch.tensor([[1, merge, merge]])}


def _internvl_encode(core: Any, inputs: Inputs) -> Features:
    pixels = _there(core, inputs["pixel_values"])
    made: Tensor = core.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
    return made.flatten(0, 1)


def _internvl_stand_in(config: Any) -> dict[str, Tensor]:
    return {"pixel_values": torch.zeros(1, config.vision_config.num_channels, *config.vision_config.image_size)}


def _molmo2_encode(core: Any, inputs: Inputs) -> Features:
    pixels, pooling, grids = _molmo2_joined(inputs)
    made = core.get_image_features(_there(core, pixels), _there(core, pooling), grids)
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


_QWEN3 = ModelFamily(encode=partial(_qwen_encode, places=_qwen3_places), stand_in=_qwen_stand_in, fill=_replaced)

FAMILIES: dict[str, ModelFamily] = {
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen2_5_vl": ModelFamily(
        encode=partial(_qwen_encode, places=_qwen2_5_places), stand_in=_qwen_stand_in, fill=_replaced
    ),
    "internvl": ModelFamily(encode=_internvl_encode, stand_in=_internvl_stand_in, fill=_replaced),
    "molmo2": ModelFamily(encode=_molmo2_encode, stand_in=_molmo2_stand_in, fill=_added, since=(5, 20)),
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


def check_version(model_type: str | None) -> None:
    """Checks that the installed ``transformers`` is new enough for a kind of model.

    Raises:
        ConfigError: it is not.
    """
    family = FAMILIES.get(model_type or "")
    if family is None or has_transformers(family.since):
        return
    import transformers

    first = ".".join(map(str, family.since))
    raise ConfigError(
        f"--model is a {model_type} model, which needs transformers {first} or newer; {transformers.__version__} is "
        f"installed: pip install 'transformers>={first}'"
    )

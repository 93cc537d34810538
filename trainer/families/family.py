"""Differences between families of vision-language models: how their pictures are cut and features made, and how these
reach their tokens. A family has a file, by the name in ``schemas.model.families``, with its ``MODELS`` by model type.

A row has one vector, or several side by side: that of the last layer, then those of Qwen3-VL's deep layers. So a rank's
features are one matrix, which one exchange moves, whatever the family.

Sizes and places of units are on the host, where they are known. The encoders of ``transformers`` work them out from the
grids, wherever these lie; on a device the host would wait for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from preshard.schemas.errors import ReaderError
from preshard.schemas.model.families import FAMILIES, INPUTS, Version
from preshard.trainer.device import compute_device, to_device
from preshard.trainer.families.pictures import MOVING, Arrays, InputUnit, Levels, Settings

Inputs = Mapping[str, Tensor]
"""A rank's vision inputs in the model's own names: pixels where the model is or on the CPU, all else on the CPU."""

Features = Float[Tensor, "rows wide"]
Hidden = Float[Tensor, "local hidden"]
Slots = Int64[Tensor, "rows"]
Tokens = Int64[Tensor, "local"]


def _nothing_more(core: Any, tokens: Tokens, slots: Slots) -> dict[str, Any]:  # noqa: ARG001
    return {}


def replace_rows(embeddings: Hidden, slots: Slots, features: Features) -> Hidden:
    """Embeddings with rows in place of those of the tokens that they fill."""
    return embeddings.index_copy(0, slots, features)


def add_rows(embeddings: Hidden, slots: Slots, features: Features) -> Hidden:
    """Embeddings with rows added to those of the tokens that they fill."""
    return embeddings.index_add(0, slots, features)


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A kind of vision-language model.

    Attributes:
        cut: a rank's pictures in the encoder's patches and under the model's own names, still in levels.
        normalise: the pixels of these.
        encode: features of a rank's images, then of its videos, by one call of the encoder: where its parameters are
            sharded, each call is a collective, and ranks hold different kinds. Features are where the model is.
        stand_in: the smallest inputs that the encoder takes, for a rank that holds no unit.
        fill: embeddings of the local tokens with rows in the slots that they fill.
        from_tokens: further arguments of the language model's call, which it would make of token ids.
        side_by_side: whether the encoder takes images of any sizes as one row of patches
            (:func:`preshard.trainer.models.interface.encoder_attention`).
        unused: parts of the model that no pack reaches, which do not train.
    """

    cut: Callable[[Settings, Sequence[InputUnit]], Arrays]
    normalise: Callable[[Settings, Levels], dict[str, Tensor]]
    encode: Callable[[Any, Inputs], Features]
    stand_in: Callable[[Any], dict[str, Tensor]]
    fill: Callable[[Hidden, Slots, Features], Hidden] = replace_rows
    from_tokens: Callable[[Any, Tokens, Slots], dict[str, Any]] = _nothing_more
    side_by_side: bool = False
    unused: tuple[str, ...] = ()

    def embedded(self, embeddings: Hidden, features: Features, slots: Slots) -> dict[str, Any]:
        """Tokens and features as arguments of the language model's call, in place of token ids.

        ``transformers`` would look for the tokens that the features fill, once for each kind of unit and once for each
        deep layer, and the host would wait for the answer. The pack says where they are.

        Args:
            embeddings: of this rank's tokens.
            features: of the rows that fill some of them.
            slots: the token that each row fills.
        """
        # those for the embeddings, then those for the first layers of the language model
        first, *deep = features.to(embeddings.dtype).split(embeddings.shape[-1], dim=1)
        given: dict[str, Any] = {"inputs_embeds": self.fill(embeddings, slots, first)[None]}
        if deep:
            # Layers take this as an index of what they add to. Of the sequences, the only one has all tokens.
            given["visual_pos_masks"] = torch.zeros(1, dtype=torch.int64, device=embeddings.device)
            nothing = torch.zeros_like(embeddings)
            given["deepstack_visual_embeds"] = [nothing.index_copy(0, slots, layer)[None] for layer in deep]
        return given


def load_family(model_type: str) -> ModelFamily:
    """The family of a ``model_type`` that reads images."""
    models: dict[str, ModelFamily] = import_module(f"{__package__}.{FAMILIES[model_type].file}").MODELS
    return models[model_type]


def has_transformers(since: Version) -> bool:
    """Whether the installed ``transformers`` is of a version or newer."""
    major, minor = version("transformers").split(".")[:2]
    return (int(major), int(minor)) >= since


def picture_levels(settings: Settings, units: Sequence[InputUnit]) -> Arrays:
    """The vision inputs of some units in the model's own names, pixels still in levels. No units give no inputs.

    Args:
        settings: the family's, as the manifest has them.
        units: the units of a rank, in order.

    Raises:
        ReaderError: the dataset was packed for no model, or for one that reads only text or that is not known.
    """
    name = settings.get("inputs")
    if name is None:
        raise ReaderError(
            "model inputs: the dataset was not packed for a model that reads images; pack it with --model DIR"
        )
    if name not in INPUTS:
        raise ReaderError(
            f"model inputs: the manifest's settings have inputs {name!r}; take a dataset with one of "
            f"{', '.join(INPUTS)}, or a newer version of preshard"
        )
    return load_family(INPUTS[name]).cut(settings, units)


def normalise(settings: Settings, levels: Levels) -> dict[str, Tensor]:
    """The model's inputs from their levels: pixels in float32 where their levels are, all else as it is.

    Args:
        settings: the family's, as the manifest has them.
        levels: of some units; empty without any.
    """
    made = load_family(INPUTS[settings["inputs"]]).normalise(settings, levels) if levels else {}
    return {name: tensor for name, tensor in levels.items() if name != MOVING} | made


def move_to_model(core: Any, tensor: Tensor) -> Tensor:
    """A tensor of the host where a model is, without waiting."""
    return to_device(tensor, compute_device(core))

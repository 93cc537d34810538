"""What differs between families of vision-language models: how features are made, and how they reach their tokens.

A row has one vector, or several side by side: that of the last layer, then those of Qwen3-VL's deep layers. So a rank's
features are one matrix, which one exchange moves, whatever the family.

Sizes and places of units are on the host, where they are known. The encoders of ``transformers`` work them out from the
grids, wherever these lie; on a device the host would wait for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from preshard.trainer.data.pixels import to_device
from preshard.trainer.models.interface import Version

Inputs = Mapping[str, Tensor]
"""A rank's vision inputs in the model's own names: pixels where the model is or on the CPU, all else on the CPU."""

Features = Float[Tensor, "rows wide"]
Hidden = Float[Tensor, "local hidden"]
Slots = Int64[Tensor, "rows"]
Tokens = Int64[Tensor, "local"]


def by_layer(features: Features, width: int) -> list[Float[Tensor, "rows hidden"]]:
    """The vectors of each row: those for the embeddings, then those for the first layers of the language model."""
    return list(features.split(width, dim=1))


def _nothing_more(core: Any, tokens: Tokens, slots: Slots) -> dict[str, Any]:  # noqa: ARG001
    return {}


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A kind of vision-language model.

    Attributes:
        encode: features of a rank's images, then of its videos, by one call of the encoder: where its parameters are
            sharded, each call is a collective, and ranks hold different kinds. Features are where the model is.
        stand_in: the smallest inputs that the encoder takes, for a rank that holds no unit.
        fill: embeddings of the local tokens with rows in the slots that they fill.
        layers: which part of the features is for which layer.
        from_tokens: further arguments of the language model's call, which it would make of token ids.
        unused: parts of the model that no pack reaches, which do not train.
        since: the first version of ``transformers`` that has it.
    """

    encode: Callable[[Any, Inputs], Features]
    stand_in: Callable[[Any], dict[str, Tensor]]
    fill: Callable[[Hidden, Slots, Features], Hidden]
    layers: Callable[[Features, int], list[Features]] = by_layer
    from_tokens: Callable[[Any, Tokens, Slots], dict[str, Any]] = _nothing_more
    unused: tuple[str, ...] = ()
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


def replace_rows(embeddings: Hidden, slots: Slots, features: Features) -> Hidden:
    """Embeddings with rows in place of those of the tokens that they fill."""
    return embeddings.index_copy(0, slots, features)


def add_rows(embeddings: Hidden, slots: Slots, features: Features) -> Hidden:
    """Embeddings with rows added to those of the tokens that they fill."""
    return embeddings.index_add(0, slots, features)


def move_to_model(core: Any, tensor: Tensor) -> Tensor:
    """A tensor of the host where a model is, without waiting."""
    return to_device(tensor, next(core.parameters()).device)

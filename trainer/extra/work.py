"""Operations of a model's training step, by rank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from preshard.schemas.layout import TILE
from preshard.schemas.model.languages import EXPERTS, USED_EXPERTS, language_model, of_layer
from preshard.trainer.attention.listed import count_tiles
from preshard.trainer.attention.mask import Groups
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.models.interface import decoder_layers, encoder_trains
from preshard.trainer.models.load import model_sizes

TRAINING, FROZEN, FORWARD = 3, 2, 1
"""A backward pass takes two products where the forward pass takes one, and with a frozen weight one, for the gradient
of what is before it; a frozen encoder takes none. What is computed again is not counted."""

STATE = "linear_attention"
"""Kind of layers that carry a state, and have no scores."""

RULE_CHUNK = 64
"""Tokens of a chunk of the gated delta rule, in ``transformers`` and in the package ``fla``."""


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """Work of a model's training step, one multiplication and addition being two operations.

    As in the costs of ``packs.parquet``: products with weights for each token, attention in whole tiles of 128 x 128,
    and the vision encoder by the loads of its units (Chowdhery et al. 2022, PaLM, appendix B).

    Attributes:
        per_token: operations of the language model's weights, of which a token passes only some experts.
        per_tile: operations of one tile over all layers and query heads.
        vision: passes of the encoder.
        windows: of each layer; empty if no layer has one.
        groups: in which layers bidirectional groups hold.
    """

    per_token: float
    per_tile: float
    vision: int = TRAINING
    windows: tuple[int | None, ...] = ()
    groups: Groups = "all"

    @classmethod
    def of(cls, model: nn.Module) -> StepWork:
        """The work of a model from ``load_model``, before it is sharded."""
        hugging_face: Any = model
        text = hugging_face.config.get_text_config()
        settings = text.to_dict()
        sizes = model_sizes(hugging_face.config)
        kinds = getattr(text, "layer_types", None) or [""] * len(sizes.head_dims)
        of_layers = zip(sizes.layer_heads, sizes.head_dims, sizes.value_dims, kinds, strict=True)
        scored = sum(heads * (key + value) for heads, key, value, kind in of_layers if kind != STATE)
        attended = scored * language_model(text.model_type).attentions
        products = sum(
            parameter.numel() * share * (TRAINING if parameter.requires_grad else FROZEN)
            for parameter, share in [
                *(
                    (each, _share(name, each, settings))
                    for name, each in decoder_layers(hugging_face).named_parameters()
                ),
                (hugging_face.get_output_embeddings().weight, 1.0),
            ]
        )
        return cls(
            per_token=2 * (products + TRAINING * kinds.count(STATE) * _rule_products(text)),
            per_tile=TRAINING * 2 * TILE * TILE * attended,
            vision=TRAINING if encoder_trains(hugging_face) else FORWARD,
            windows=sizes.windows,
            groups=sizes.groups,
        )

    def of_rank(self, batch: RankBatch) -> float:
        """The work of one rank's part of a pack. Only what lies on the CPU is read."""
        tiles = batch.tiles.n_tiles if batch.tiles is not None else count_tiles(batch, self.windows, self.groups)
        tokens = int((batch.doc_ids[batch.positions] >= 0).sum())
        vision = self.vision * 2 * sum(unit.load for unit in batch.units)
        return self.per_token * tokens + self.per_tile * tiles + vision


def _share(name: str, parameter: nn.Parameter, text: Mapping[str, Any]) -> float:
    """The share of a block's parameter that a token is multiplied with: of experts, whose weights lie side by side or
    in a list, those that it is sent to.
    """
    if parameter.ndim < 2 or name.endswith("bias"):
        return 0.0
    layer = int(name.partition(".")[0])
    experts, used = (of_layer(text, names, layer) or 1 for names in (EXPERTS, USED_EXPERTS))
    side_by_side = parameter.ndim == 3 and parameter.shape[0] == experts and parameter.shape[1] > 1
    return used / experts if side_by_side or re.search(r"\.experts\.\d+\.", name) else 1.0


def _rule_products(text: Any) -> int:
    """Multiplications of one token in a layer's gated delta rule, which takes tokens in chunks (Yang et al. 2024). As
    in torch's own count, solving a chunk's triangular system is none.
    """
    if not hasattr(text, "linear_num_value_heads"):
        return 0
    key, value = text.linear_key_head_dim, text.linear_value_head_dim
    return int(text.linear_num_value_heads * (RULE_CHUNK * (2 * key + value) + 3 * key * value))

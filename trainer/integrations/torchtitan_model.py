"""Additions to a model of torchtitan for packs: their attention and their loss, and no tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torchtitan.components.loss import BaseLoss, ChunkedLossWrapper, CrossEntropyLoss, compute_logprobs
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.attention import (
    FlexAttention,
    GQAttention,
    ScaledDotProductAttention,
    VarlenAttention,
)
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.qwen3.model import Qwen3TransformerBlock
from torchtitan.protocols.module import Module

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.bind import Attend
from preshard.trainer.models.interface import packed_attention

BLOCKS = (Llama3TransformerBlock.Config, Qwen3TransformerBlock.Config)
"""Layers that mix tokens by their attention alone, which is one of ``MASKED``. Experts may drop tokens of a batch."""

MASKED = (FlexAttention.Config, ScaledDotProductAttention.Config, VarlenAttention.Config)
"""Attention of whole documents, which that of packs stands in for."""


@dataclass(kw_only=True, slots=True)
class NoTokenizer(BaseTokenizer.Config):
    """Packs are tokenised, and torchtitan cannot read templates that mark what the assistant says."""

    def build(self, **_: Any) -> None:
        """Builds nothing."""


class PackedAttention(Module):
    """Replacement for a layer's inner attention. Its mask is what ``bind`` has planned for the batch."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """Nothing to configure."""

    def __init__(self, config: Config) -> None:  # noqa: ARG002 (how torchtitan builds modules)
        super().__init__()

    def parallelize(self, parallel_dims: Any) -> None:
        """Leaves q, k and v to ``forward``, where torchtitan would gather keys and values over its axis ``cp``."""

    @torch.compiler.disable
    def forward(
        self,
        q_BLNH: Float[Tensor, "1 local heads head_dim"],  # noqa: N803 (torchtitan's names)
        k_BLNH: Float[Tensor, "1 local kv_heads head_dim"],  # noqa: N803
        v_BLNH: Float[Tensor, "1 local kv_heads head_dim"],  # noqa: N803
        *,
        attention_masks: Attend,
        scale: float | None = None,
        **_: Any,
    ) -> Float[Tensor, "1 local heads head_dim"]:
        q, k, v = (each.transpose(1, 2) for each in (q_BLNH, k_BLNH, v_BLNH))
        return packed_attention(self, q, k, v, None, attend=attention_masks, scaling=scale)[0]


class WeightedLoss(BaseLoss):
    """The sum of loss weight x cross entropy, over the sum of all loss weights of a step."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseLoss.Config):
        """Nothing to configure."""

    def __init__(self, config: Config, *, compile_config: Any = None) -> None:  # noqa: ARG002
        self.fn = _weighted
        self._maybe_compile(compile_config)

    def __call__(
        self,
        pred: Float[Tensor, "1 tokens vocab"],
        labels: Int64[Tensor, "1 tokens"],
        global_valid_tokens: Tensor | None = None,
        *,
        loss_weights: Float32[Tensor, "1 tokens"],
        **_: Any,
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        loss = self.fn(pred, labels, loss_weights)
        return (loss if global_valid_tokens is None else loss / global_valid_tokens), {}


def _weighted(
    pred: Float[Tensor, "1 tokens vocab"], labels: Int64[Tensor, "1 tokens"], loss_weights: Float32[Tensor, "1 tokens"]
) -> Float[Tensor, ""]:
    return -(compute_logprobs(pred, labels) * loss_weights).sum()


def loss_of_packs(config: BaseLoss.Config) -> BaseLoss.Config:
    """The loss of packs, in chunks where the configured one is."""
    if isinstance(config, ChunkedLossWrapper.Config):
        config.loss_fn = loss_of_packs(config.loss_fn)
        return config
    if type(config) is not CrossEntropyLoss.Config:
        raise ConfigError(f"loss is {_name(config)}, and packs have labels and weights: take CrossEntropyLoss")
    return WeightedLoss.Config()


def take_attention(model: Any) -> tuple[int, int]:
    """Puts the attention of packs into each layer of a configuration; gives the numbers of query and key heads."""
    if not isinstance(model, Decoder.Config):
        raise ConfigError(f"the model is {_name(model)}: take llama3 or qwen3 of torchtitan")
    for number, layer in enumerate(model.layers):
        attention = layer.attention
        inner = getattr(attention, "inner_attention", None)
        parts = ((layer, BLOCKS), (layer.moe, (type(None),)), (attention, (GQAttention.Config,)), (inner, MASKED))
        unknown = [part for part, known in parts if type(part) not in known]
        if unknown or getattr(inner, "window_size", (-1, 0)) != (-1, 0):
            raise ConfigError(
                f"layer {number} has {_name([*unknown, inner][0])}, which packs do not support: take a dense "
                "llama3 or qwen3 of torchtitan, with attention over whole documents"
            )
        attention.inner_attention = PackedAttention.Config()
    return attention.n_heads, attention.n_kv_heads or attention.n_heads


def _name(config: Any) -> str:
    return type(config).__qualname__.removesuffix(".Config")

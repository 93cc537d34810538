# ruff: noqa: N806 (shape suffixes)
"""The language model: a decoder in plain torch that is passed its attention.

There is no batch dim: a batch is one pack, of which a rank holds S tokens. Shape suffixes: H query heads, K key and
value heads, S local tokens, D head_dim.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.attention import Attend
from trainer.models.config import DecoderConfig
from trainer.models.rope import Rotary


class Attention(nn.Module):
    """Projections to heads and back; which token sees which is up to ``attend``."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "S hidden"], rotary: Rotary, attend: Attend) -> Float[Tensor, "S hidden"]:
        q_HSD, k_KSD, v_KSD = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        out_HSD = attend(rotary(q_HSD), rotary(k_KSD), v_KSD)
        return self.o_proj(out_HSD.transpose(0, 1).flatten(1))

    def _heads(self, x: Float[Tensor, "S width"]) -> Float[Tensor, "heads S D"]:
        return x.unflatten(1, (-1, self.head_dim)).transpose(0, 1)


class SwiGLU(nn.Module):
    """The gated MLP of Shazeer 2020 (GLU Variants Improve Transformer), without biases."""

    def __init__(self, in_size: int, intermediate_size: int, out_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(in_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(in_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, out_size, bias=False)

    def forward(self, x: Float[Tensor, "*rows in_size"]) -> Float[Tensor, "*rows out_size"]:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Attention and MLP, each on the normed residual stream and added to it.

    With ``recompute`` nothing inside is kept for the backward pass. The layer runs again there, its collectives too, in
    the same order on every rank.
    """

    def __init__(self, config: DecoderConfig, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size, config.hidden_size)

    def forward(self, x: Float[Tensor, "S hidden"], rotary: Rotary, attend: Attend) -> Float[Tensor, "S hidden"]:
        # inside forward, so that parameters sharded by layer have been gathered when the recomputation needs them
        if self.recompute and torch.is_grad_enabled():
            recomputed: Tensor = checkpoint(self._forward, x, rotary, attend, use_reentrant=False)
            return recomputed
        return self._forward(x, rotary, attend)

    def _forward(self, x: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, attend)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Token embedding, layers and the last norm. The loss multiplies by :attr:`output_weight` itself."""

    def __init__(self, config: DecoderConfig, *, recompute: bool = False) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise AssertionError("build a model from a config that for_dataset has filled in")
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, recompute=recompute) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.output = None if config.tie_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def output_weight(self) -> Float[Tensor, "vocab hidden"]:
        """The output projection. The module ``output`` is never called: do not shard it as a module of its own."""
        return self.embedding.weight if self.output is None else self.output.weight

    def forward(
        self,
        tokens: Int64[Tensor, "S"],
        position_ids: Int64[Tensor, "S"],
        features: Float[Tensor, "filled hidden"],
        slots: Int64[Tensor, "filled"],
        attend: Attend,
    ) -> Float[Tensor, "S hidden"]:
        """The last hidden states of the local tokens.

        Args:
            tokens: token ids.
            position_ids: their positions in their documents.
            features: pooled vision features, which replace the embeddings of the tokens they fill.
            slots: the local token that each feature fills, no token twice.
            attend: attention over the pack.
        """
        embedded = self.embedding(tokens)
        x = embedded.index_copy(0, slots, features.to(embedded.dtype))
        rotary = Rotary(position_ids, head_dim=self.config.head_dim, theta=self.config.rope_theta, dtype=embedded.dtype)
        for layer in self.layers:
            x = layer(x, rotary, attend)
        hidden: Tensor = self.norm(x)
        return hidden

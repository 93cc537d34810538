"""What the memory of a rank holds while it trains as ``preshard.train`` does; estimates, in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from preshard.schemas.model.dimensions import ModelDimensions

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
"""What the backward pass recomputes, the least first."""

USABLE = 0.9
"""Share of a device's memory that tensors may take: the rest is CUDA's own, its libraries' and lost between tensors."""

STATE_NUMBERS = 4
"""Numbers for each parameter: itself, its gradient and AdamW's two means."""

HIDDEN_KEPT, QUERIES_KEPT, KEYS_KEPT, INNER_KEPT = 8, 6, 5, 4
"""Numbers that a layer of Qwen3 keeps of each token, as multiples of the widths of the residual stream, of all queries,
of all keys and of the MLP: ``tests/benchmarks/advice_memory.py`` counts them. Llama, without norms of queries and keys,
keeps 3 and 2 of these two."""

VISION_KEPT = 20
"""The same of a layer of the vision encoder and its width: the same script counts 11 of the width and 2 of the MLP in a
layer of Qwen3-VL's, whose MLP is about four times as wide."""

BLOCKS_GATHERED = 2
"""Blocks whose parameters are whole at a time: one in use, and the next on its way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankShare:
    """What the rank that holds most has of a pack.

    Attributes:
        tokens: of its slice.
        patches, rows: of the vision encoder, and the rows of features that it makes of them.
        keys: tokens whose keys and values it holds while a layer is computed, its own included; 0 where none travel.
        key_heads: heads of these.
    """

    tokens: float
    patches: float
    rows: float
    keys: float
    key_heads: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryParts:
    """Bytes of one rank.

    Attributes:
        state: its part of parameters, gradients and the optimiser's state.
        gathered: whole parameters of the blocks in use, of embedding and output projection, and a block's gradients.
        activations: what the forward pass keeps for the backward pass.
        keys: keys and values of other ranks, with their gradients.
        logits: logits, and the gradient of the output projection.
    """

    state: float
    gathered: float
    activations: float
    keys: float
    logits: float

    @property
    def total(self) -> float:
        return self.state + self.gathered + self.activations + self.keys + self.logits


@dataclass(frozen=True, kw_only=True, slots=True)
class Trains:
    """What of a model trains, where that is not all of it.

    Attributes:
        trained, frozen: numbers in parameters of either kind, adapters among the trained ones.
        blocks: whether the decoder's own weights are trained, in whole or in part.
        head: the same of the output projection.
        encoder: whether anything that makes features is trained: without, the encoder takes no backward pass.
    """

    trained: int
    frozen: int
    blocks: bool
    head: bool
    encoder: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingMemory:
    """How a model trains, as far as memory depends on it.

    Attributes:
        sizes: the model.
        shards: ranks that a parameter is spread over.
        compute_bytes, sum_bytes: of a number that the model computes with, and that gradients are added in.
        state_bytes: of a parameter, its gradient and the optimiser's state.
        logits_bytes: the most that logits may take at a time.
        recompute: one of :data:`RECOMPUTE`.
        offload: whether inputs of blocks that are computed again wait elsewhere.
        mlp_tiles: parts in which the MLPs take a rank's tokens, each computed again.
        trains: None if the whole model does.
    """

    sizes: ModelDimensions
    shards: int
    compute_bytes: int
    sum_bytes: int
    state_bytes: float
    logits_bytes: float
    recompute: str
    offload: bool = False
    mlp_tiles: int = 1
    trains: Trains | None = None

    def of_rank(self, share: RankShare) -> MemoryParts:
        """Memory of a rank with such a share of a pack."""
        sizes, number, sums = self.sizes, self.compute_bytes, self.sum_bytes
        whole = BLOCKS_GATHERED * sizes.layer_parameters + sizes.embeddings
        trains = self.trains or Trains(trained=sizes.parameters, frozen=0, blocks=True, head=True, encoder=True)
        slopes = (number if number == sums else number + sums) * trains.head
        return MemoryParts(
            state=(self.state_bytes * trains.trained + sums * trains.frozen) / self.shards,
            gathered=number * whole + (number + sums) * sizes.layer_parameters * trains.blocks,
            activations=share.tokens * self._decoder() + self._encoder(share, trained=trains.encoder),
            keys=2 * share.key_heads * sizes.head_dim * (number + sums) * share.keys,
            logits=self.logits_bytes + slopes * sizes.head_products,
        )

    def _decoder(self) -> float:
        """Bytes of a token."""
        sizes = self.sizes
        attention = sizes.heads * sizes.head_dim
        heads = QUERIES_KEPT * attention + KEYS_KEPT * sizes.kv_heads * sizes.head_dim
        inner = INNER_KEPT * sizes.inner
        layer = HIDDEN_KEPT * sizes.hidden + heads
        given = 0 if self.offload else sizes.hidden
        kept = {
            "none": layer + (inner if self.mlp_tiles == 1 else 0),
            "selective": given + attention,
            "full": given,
        }[self.recompute]
        in_use = inner / self.mlp_tiles if self.recompute == "none" and self.mlp_tiles > 1 else 0
        if self.recompute != "none":
            in_use = layer + inner / self.mlp_tiles
        return self.compute_bytes * (sizes.layers * kept + in_use)

    def _encoder(self, share: RankShare, *, trained: bool) -> float:
        """Bytes of the patches, and of the rows that are made of them, which are not computed again."""
        layer, given = VISION_KEPT * self.sizes.vision_width, 0 if self.offload else self.sizes.vision_width
        if not trained:  # nothing is kept, and one layer is in use at a time
            return self.compute_bytes * share.patches * layer
        kept = layer if self.recompute == "none" else given
        in_use = 0 if self.recompute == "none" else layer
        patches = share.patches * (self.sizes.vision_layers * kept + in_use)
        return self.compute_bytes * (patches + share.rows * self.sizes.vision_row)

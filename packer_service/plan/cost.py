"""What training on a pack costs, from the model's dimensions: linear layers, attention in tiles, vision.

A training step counts three times the floating-point operations of its forward pass, one multiplication and addition
being two operations (Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022, PaLM, appendix B; Narayanan et al. 2021,
Megatron-LM, appendix). Costs are relative: they put packs in order, they do not predict seconds.

Every term is an integer until the last step, which multiplies and adds float64 in one fixed order, so that a cost has
the same bits on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float64, Int64

from schemas.errors import PlanError
from schemas.layout import TILE

_TRAINING = 3
_GIGA = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Dimensions of the model that will train.

    Attributes:
        hidden_size: width of the decoder.
        num_layers: layers of the decoder.
        num_attention_heads: query heads of the decoder.
        num_key_value_heads: key and value heads of the decoder.
        head_dim: width of a decoder head.
        intermediate_size: width of the decoder's SwiGLU, and of the connector's, which Molmo2 makes as wide.
        vocab_size: rows of the output projection.
        vision_hidden_size: width of the vision encoder.
        vision_num_layers: encoder layers that run: Molmo2 reads layers -3 and -9 of 27 and drops what follows -3.
        vision_num_attention_heads: heads of the vision encoder, which split its width and cost nothing by themselves.
        vision_intermediate_size: width of the vision encoder's MLP.
        patch_size: side of a patch in pixels.
        patches_per_crop: patches that the encoder sees for one crop.
        pooled_per_crop: rows of pooled features, and so decoder tokens, of one crop.
    """

    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    vision_hidden_size: int
    vision_num_layers: int
    vision_num_attention_heads: int
    vision_intermediate_size: int
    patch_size: int
    patches_per_crop: int
    pooled_per_crop: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise PlanError(f"cost.{field.name} is {value}; give a positive integer")

    @property
    def linear_flops_per_token(self) -> int:
        """Matrix products with weights for one token, in training FLOPs; no attention scores, no embedding look-up.

        Per layer: queries, keys, values and output projection, and the three matrices of a SwiGLU (Shazeer 2020); then
        the output projection to the vocabulary.
        """
        heads = 2 * self.num_attention_heads + 2 * self.num_key_value_heads
        layer = self.hidden_size * (heads * self.head_dim + 3 * self.intermediate_size)
        return _TRAINING * 2 * (self.num_layers * layer + self.hidden_size * self.vocab_size)

    @property
    def attention_flops_per_tile(self) -> int:
        """Scores and weighted values of one TILE x TILE tile over all layers and query heads, in training FLOPs.

        A kernel pays for the whole tile once a single pair in it is allowed (Dong et al. 2024, FlexAttention).
        """
        return _TRAINING * 2 * 2 * TILE * TILE * self.num_attention_heads * self.head_dim * self.num_layers

    @property
    def vision_flops_per_crop(self) -> int:
        """Patch embedding, encoder, attention pooling and connector for one crop, in training FLOPs.

        An encoder layer has four square projections, an MLP of two matrices and full attention inside the crop
        (Dosovitskiy et al. 2021). As in Molmo2, the pooling attends with one query a window over two layers' features
        laid side by side, then a SwiGLU maps to the decoder's width.
        """
        width, patches, pooled = self.vision_hidden_size, self.patches_per_crop, self.pooled_per_crop
        embedding = patches * 3 * self.patch_size**2 * width
        layer = patches * (4 * width * width + 2 * width * self.vision_intermediate_size) + 2 * patches**2 * width
        pooling = (pooled + 2 * patches) * 2 * width * width + pooled * width * width + 2 * patches * width
        connector = pooled * self.intermediate_size * (2 * width + self.hidden_size)
        return _TRAINING * 2 * (embedding + self.vision_num_layers * layer + pooling + connector)


def causal_area(lengths: Int64[np.ndarray, "docs"]) -> Int64[np.ndarray, "docs"]:
    """Allowed pairs of a document whose every token sees itself and all before it."""
    return lengths * (lengths + 1) // 2


def document_tiles(lengths: Int64[np.ndarray, "docs"], areas: Int64[np.ndarray, "docs"]) -> Float64[np.ndarray, "docs"]:
    """Attention tiles that documents take in a pack, estimated without knowing where in the pack they will lie.

    ``area / TILE**2 + boundary(length)``: the boundary term is what a causal triangle of that length takes beyond its
    area, on average over all positions of its first token in a tile. A document of n tokens, ``n - 1 = m * TILE + r``,
    touches ``m + 1`` rows of tiles, or one more from ``r`` of the TILE positions, and has ``rows * (rows - 1) / 2``
    tiles below the diagonal. Tiles on the diagonal are shared with its neighbours in the pack, so each token counts
    ``1 / TILE`` of one.

    The sum over the documents of a pack depends on their lengths and on the sum of their areas alone: a written pack,
    whose area is known only as a whole, has exactly the figure of its plan. Values are multiples of ``TILE**-2``, hence
    exact, and so is their sum in any order, up to a pack of 2**39 pairs.

    Args:
        lengths: real tokens, at least 1.
        areas: allowed pairs of each document's mask.
    """
    m, r = np.divmod(lengths - 1, TILE)
    causal_tile_pairs = TILE * lengths + TILE * TILE * (m * (m + 1) // 2) + TILE * (m + 1) * r
    return (causal_tile_pairs - causal_area(lengths) + areas) / (TILE * TILE)


def pack_cost(
    model: CostModel,
    *,
    seq_len: int,
    tiles: Float64[np.ndarray, "packs"],
    crops: Int64[np.ndarray, "packs"],
) -> Float64[np.ndarray, "packs"]:
    """Cost of packs in GFLOP: ``seq_len`` tokens of linear work each, padding included, their tiles and their crops.

    Args:
        model: dimensions of the model.
        seq_len: tokens of every pack.
        tiles: attention tiles of each pack: :func:`document_tiles`, summed over its documents.
        crops: crops of each pack.
    """
    linear = np.float64(model.linear_flops_per_token * seq_len)
    attention = tiles * np.float64(model.attention_flops_per_tile)
    vision = crops.astype(np.float64) * np.float64(model.vision_flops_per_crop)
    return ((linear + attention) + vision) / _GIGA

"""Cost of training on a pack, by the model's dimensions: linear layers, attention in tiles, vision.

A training step counts three times the floating-point operations of its forward pass, one multiplication and addition
being two operations (Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022, PaLM, appendix B; Narayanan et al. 2021,
Megatron-LM, appendix). Costs are relative: they put packs in order, they do not predict seconds.

Every term is an integer until the last step, which multiplies and adds float64 in one fixed order, so that a cost has
the same bits on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from preshard.schemas.config import PackConfig
from preshard.schemas.layout import TILE
from preshard.schemas.manifest import LayerMasks
from preshard.schemas.sections import CostConfig, VisionConfig

_TRAINING = 3
"""A backward pass takes two products where the forward pass takes one."""

_GIGA = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Weighs the work of a pack for the model that will train.

    Attributes:
        model: dimensions of decoder and vision encoder. The connector's SwiGLU is as wide as the decoder's, and encoder
            layers that do not run are not counted, both as in Molmo2.
        vision: the size of a square crop, from which its patches and pooled rows follow.
        layers: how many layers have which mask, where some have a window shorter than packs.
    """

    model: CostConfig
    vision: VisionConfig
    layers: LayerMasks | None = None

    @classmethod
    def of(cls, config: PackConfig, layers: LayerMasks | None = None) -> CostModel:
        """The cost model of a packing job."""
        return cls(model=config.cost, vision=config.vision, layers=layers)

    @property
    def weights(self) -> tuple[int, int]:
        """Weights of tiles under the full mask and within windows: the numbers of layers."""
        return (1, 0) if self.layers is None else (self.layers.full_layers, self.layers.window_layers)

    def attended_tiles(
        self, lengths: Int64[np.ndarray, "docs"], areas: Int64[np.ndarray, "docs"]
    ) -> Float64[np.ndarray, "docs"]:
        """Tiles of documents over all layers, weighed by :attr:`weights`; exact in any order, as those of one mask.

        Args:
            lengths: real tokens, at least 1.
            areas: allowed pairs of each document's mask. Within windows only lengths count.
        """
        if self.layers is None:
            return document_tiles(lengths, areas)
        if self.layers.groups == "window":  # pairs beyond the causal ones are there alone
            areas = np.minimum(areas, causal_area(lengths))
        full, window = self.weights
        return full * document_tiles(lengths, areas) + window * window_tiles(lengths, self.layers.window)

    @property
    def linear_flops_per_token(self) -> int:
        """Matrix products with weights for one token, in training FLOPs, without attention scores and embedding
        look-up.

        Per layer: queries, keys, values and output projection, and the three matrices of a SwiGLU (Shazeer 2020); then
        the output projection to the vocabulary.
        """
        model = self.model
        heads = 2 * model.num_attention_heads + 2 * model.num_key_value_heads
        layer = model.hidden_size * (heads * model.head_dim + 3 * model.intermediate_size)
        return _TRAINING * 2 * (model.num_layers * layer + model.hidden_size * model.vocab_size)

    @property
    def attention_flops_per_tile(self) -> int:
        """Scores and weighted values of one TILE x TILE tile over all layers and query heads, in training FLOPs.

        A kernel pays for the whole tile once a single pair in it is allowed (Dong et al. 2024, FlexAttention).
        """
        model = self.model
        return _TRAINING * 2 * 2 * TILE * TILE * model.num_attention_heads * model.head_dim * model.num_layers

    @property
    def vision_work_per_sent_number(self) -> float:
        """Multiplications of a forward pass that take as long, with their training step, as a number of a feature takes
        to another rank and its gradient back, 16 bits each.
        """
        return 2 * 2 * 1000 * self.model.attention_tflops / (self.model.link_gb_per_s * 2 * _TRAINING)

    @property
    def vision_work_per_crop(self) -> int:
        """Patch embedding, encoder, attention pooling and connector for one square crop, in multiplications.

        This is the forward pass; training takes :data:`_TRAINING` times as many, and as many additions.

        An encoder layer has four square projections, an MLP of two matrices and full attention inside the crop
        (Dosovitskiy et al. 2021). As in Molmo2, the pooling attends with one query a window over two layers' features
        laid side by side, then a SwiGLU maps to the decoder's width.
        """
        model, vision = self.model, self.vision
        width, patches, pooled = model.vision_hidden_size, vision.patches_per_crop, vision.pooled_per_crop
        embedding = patches * 3 * vision.patch_size**2 * width
        layer = patches * (4 * width * width + 2 * width * model.vision_intermediate_size) + 2 * patches**2 * width
        pooling = (pooled + 2 * patches) * 2 * width * width + pooled * width * width + 2 * patches * width
        connector = pooled * model.intermediate_size * (2 * width + model.hidden_size)
        return embedding + model.vision_num_layers * layer + pooling + connector


def causal_area(lengths: Int64[np.ndarray, "docs"]) -> Int64[np.ndarray, "docs"]:
    """Allowed pairs of a document whose every token sees itself and all before it."""
    return lengths * (lengths + 1) // 2


def document_tiles(lengths: Int64[np.ndarray, "docs"], areas: Int64[np.ndarray, "docs"]) -> Float64[np.ndarray, "docs"]:
    """Attention tiles that documents take in a pack, estimated without knowing where in the pack they will lie.

    ``area / TILE**2 + boundary(length)``: the boundary term is what a causal triangle of that length takes beyond its
    area, on average over all positions that its first token can have in a tile. A document of n tokens, ``n - 1 = m *
    TILE + r``, touches ``m + 1`` rows of tiles, or one more from ``r`` of the TILE positions, and has ``rows * (rows -
    1) / 2`` tiles below the diagonal. Tiles on the diagonal are shared with its neighbours in the pack, so each token
    counts ``1 / TILE`` of one.

    The sum over the documents of a pack depends only on their lengths and on the sum of their areas: a written pack,
    whose area is known only as a whole, has exactly the figure of its plan. Values are multiples of ``TILE**-2``, hence
    exact, and so is their sum in any order, up to a pack of 2**39 pairs.

    Args:
        lengths: real tokens, at least 1.
        areas: allowed pairs of each document's mask.
    """
    m, r = np.divmod(lengths - 1, TILE)
    causal_tile_pairs = TILE * lengths + TILE * TILE * (m * (m + 1) // 2) + TILE * (m + 1) * r
    return (causal_tile_pairs - causal_area(lengths) + areas) / (TILE * TILE)


def window_tiles(lengths: Int64[np.ndarray, "docs"], window: int) -> Float64[np.ndarray, "docs"]:
    """Tiles of causal documents within a window, on average over all positions that a first token can have in a tile.

    As :func:`document_tiles`, but below the diagonal a row of tiles has at most ``ceil((window - 1) / TILE)``, wherever
    the document lies. Values are multiples of ``1 / TILE``.

    Args:
        lengths: real tokens, at least 1.
        window: tokens that a token sees, itself among them.
    """
    m, r = np.divmod(lengths - 1, TILE)
    most = -(-(window - 1) // TILE)

    def below(rows: Int64[np.ndarray, "docs"]) -> Int64[np.ndarray, "docs"]:
        growing = np.minimum(rows, most + 1)
        return growing * (growing - 1) // 2 + (rows - growing) * most

    return ((TILE - r) * below(m + 1) + r * below(m + 2) + lengths) / TILE


def pack_cost(
    model: CostModel,
    *,
    seq_len: int,
    tiles: Float64[np.ndarray, "packs"],
    loads: Int64[np.ndarray, "packs"],
) -> Float64[np.ndarray, "packs"]:
    """Cost of packs in GFLOP: ``seq_len`` tokens of linear work each, padding included, their tiles and their units.

    Args:
        model: dimensions of the model.
        seq_len: tokens of every pack.
        tiles: attention tiles of each pack: :meth:`CostModel.attended_tiles`, summed over its documents.
        loads: vision encoder's work of each pack, in multiplications of its forward pass.
    """
    linear = np.float64(model.linear_flops_per_token * seq_len)
    attention = tiles * np.float64(model.attention_flops_per_tile) / sum(model.weights)
    return ((linear + attention) + _vision_flops(loads)) / _GIGA


def vision_cost(loads: Int64[np.ndarray, "packs"]) -> Float64[np.ndarray, "packs"]:
    """The vision encoder's part of :func:`pack_cost`, in GFLOP.

    Args:
        loads: its work for each pack, in multiplications of its forward pass.
    """
    return _vision_flops(loads) / _GIGA


def _vision_flops(loads: Int64[np.ndarray, "packs"]) -> Float64[np.ndarray, "packs"]:
    return loads.astype(np.float64) * np.float64(_TRAINING * 2)

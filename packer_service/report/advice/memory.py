"""What the memory of a rank holds while it trains as ``trainer`` does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from preshard.packer_service.report.advice.figures import RankMemory
from preshard.packer_service.report.advice.loads import PackLoads
from preshard.packer_service.report.advice.model import ModelDimensions
from preshard.packer_service.report.advice.question import AdviceQuestion
from preshard.packer_service.report.advice.split import SplitChoice

RECOMPUTE = ("none", "selective", "full")
"""What the backward pass computes again, the least first."""

HIDDEN_KEPT, QUERIES_KEPT, KEYS_KEPT, INNER_KEPT = 8, 6, 5, 4
"""Numbers that a layer of Qwen3 keeps of each token, as multiples of the widths of the residual stream, of all queries,
of all keys and of the MLP: ``tests/benchmarks/advice_memory.py`` counts them. Llama, without norms of queries and keys,
keeps 3 and 2 of these two."""

VISION_KEPT = 20
"""The same of a layer of the vision encoder and its width, whose MLP is about four times as wide; counted from what its
layers compute (Dosovitskiy et al. 2021), not measured."""

BLOCKS_GATHERED = 2
"""Blocks whose parameters are whole at a time: one in use, and the next on its way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Estimates for one model. All in bytes until the end."""

    sizes: ModelDimensions
    question: AdviceQuestion
    loads: PackLoads
    seq_len: int
    gpus: int

    def of_rank(self, split: SplitChoice, recompute: str) -> RankMemory:
        """Memory of the rank that holds most, over the sampled packs."""
        sizes, asked = self.sizes, self.question
        number, sums = asked.compute_bytes, asked.sum_bytes
        blocks = BLOCKS_GATHERED * sizes.layer_parameters + sizes.embeddings
        parts = {
            "state": asked.state_bytes * sizes.parameters / self.gpus,
            "gathered": float(number * blocks) if self.gpus > 1 else 0.0,
            "activations": self._decoder(split, recompute) + self._encoder(split, recompute),
            "keys": self._keys(split),
            "logits": asked.logits_gb * 1e9 + (number + sums) * sizes.head_products,
        }
        in_gb = {name: value / 1e9 for name, value in parts.items()}
        return RankMemory(**in_gb, total=sum(in_gb.values()))

    def _decoder(self, split: SplitChoice, recompute: str) -> float:
        sizes, number = self.sizes, self.question.compute_bytes
        heads = (QUERIES_KEPT * sizes.heads + KEYS_KEPT * sizes.kv_heads) * sizes.head_dim
        layer = number * (HIDDEN_KEPT * sizes.hidden + heads + INNER_KEPT * sizes.inner)
        kept = {
            "none": layer,
            "selective": number * (sizes.hidden + sizes.heads * sizes.head_dim),
            "full": number * sizes.hidden,
        }[recompute]
        in_use = 0.0 if recompute == "none" else layer
        return self.seq_len / split.cp_size * (sizes.layers * kept + in_use)

    def _encoder(self, split: SplitChoice, recompute: str) -> float:
        """Of the patches of the busiest rank."""
        work, patches = self.loads.columns["load"], self.loads.columns["n_patches"]
        if not work.any():
            return 0.0
        share = self.loads.largest_image_load(split.cp_size) / np.maximum(work, 1)
        width = self.question.compute_bytes * self.sizes.vision_width
        layer = VISION_KEPT * width
        kept = self.sizes.vision_layers * (layer if recompute == "none" else width)
        return float((patches * share).max()) * (kept + (0.0 if recompute == "none" else layer))

    def _keys(self, split: SplitChoice) -> float:
        """A ring holds two slices of keys, a gather all that a rank needs; gradients of either beside them."""
        if split.ring == 1:
            return 0.0
        heads = split.heads_on_the_way(self.sizes.kv_heads) / split.ulysses
        key = 2 * heads * self.sizes.head_dim * (self.question.compute_bytes + self.question.sum_bytes)
        own = self.seq_len / split.ring
        if split.kind == "ring":
            return key * 2 * own
        return float(key * (own + self.loads.layouts[split.layout, split.ring].most_keys.max(initial=0)))

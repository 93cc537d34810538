"""Memory of a rank, for each split of a dataset's packs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from preshard.packer_service.report.advice.estimate.loads import PackLoads
from preshard.packer_service.report.advice.estimate.split import SplitChoice
from preshard.packer_service.report.advice.figures import RankMemory
from preshard.packer_service.report.advice.question import AdviceQuestion
from preshard.schemas.layout import table_bytes
from preshard.schemas.model.dimensions import ModelDimensions
from preshard.schemas.model.memory import RankShare, TrainingMemory
from preshard.schemas.model.savings import TILED_LOGITS_MIB, TILES, Saving


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Estimates for one model."""

    sizes: ModelDimensions
    question: AdviceQuestion
    loads: PackLoads
    seq_len: int
    gpus: int

    def of_rank(self, split: SplitChoice, saving: Saving) -> RankMemory:
        """Memory of the rank that holds most, over the sampled packs, in 10^9 bytes."""
        asked = self.question
        training = TrainingMemory(
            sizes=self.sizes,
            shards=self.gpus,
            compute_bytes=asked.compute_bytes,
            sum_bytes=asked.sum_bytes,
            state_bytes=asked.state_bytes,
            logits_bytes=min(asked.logits_gb * 1e9, TILED_LOGITS_MIB * 2**20 if saving.tiled else float("inf")),
            recompute=saving.recompute,
            offload=saving.inputs_wait,
            on_host=saving.on_host,
            mlp_tiles=TILES if saving.tiled else 1,
            compiled=asked.compiled,
        )
        parts = training.of_rank(self._share(split, saving.head_stride))
        in_gb = {name: value / 1e9 for name, value in asdict(parts).items()}
        return RankMemory(**in_gb, total=parts.total / 1e9)

    def _share(self, split: SplitChoice, head_stride: int) -> RankShare:
        columns, work = self.loads.columns, self.loads.columns["load"]
        images = self.loads.largest_image_load(split.cp_size) / np.maximum(work, 1)
        parts = split.ring if split.kind == "ring" else 1
        return RankShare(
            tokens=self.seq_len / split.cp_size,
            patches=float((columns["n_patches"] * images).max(initial=0)),
            rows=float((columns["n_pooled_tokens"] * images).max(initial=0)),
            keys=self._keys(split),
            key_heads=head_stride or split.heads_on_the_way(self.sizes.kv_heads) / split.ulysses,
            tables=parts * table_bytes(self.seq_len / split.ring, self.seq_len / parts),
            in_parts=split.kind == "ring",
            copied_heads=split.heads_on_the_way(self.sizes.kv_heads) - self.sizes.kv_heads,
        )

    def _keys(self, split: SplitChoice) -> float:
        """A ring holds two slices of keys, a gather all that a rank needs."""
        if split.ring == 1:
            return 0.0
        own = self.seq_len / split.ring
        if split.kind == "ring":
            return 2 * own
        return float(own + self.loads.layouts[split.layout, split.ring].most_keys.max(initial=0))

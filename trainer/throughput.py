"""What is seen of a run beside its losses: the work of each rank, by the formula of the plan, and the profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from preshard.schemas.layout import TILE
from preshard.trainer.attention.listed import count_tiles
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.models.folder import model_sizes

SKIPPED, WARMED_UP, RECORDED = 2, 1, 3
"""Steps before the profiler starts, steps that it runs without keeping them, and steps of the trace.

The first steps allocate memory and compile kernels, which later ones do not.
"""


@contextmanager
def profiled(folder: Path | None) -> Iterator[profile | None]:
    """Profiles a run; call ``step()`` of what it gives after each step. Without a folder there is nothing.

    Each rank writes ``rank-N.json`` into the folder, which ``chrome://tracing`` and Perfetto open.
    """
    if folder is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]

    def write(found: profile) -> None:
        found.export_chrome_trace(str(folder / f"rank-{dist.get_rank()}.json"))

    with profile(
        activities=activities,
        schedule=schedule(wait=SKIPPED, warmup=WARMED_UP, active=RECORDED, repeat=1),
        on_trace_ready=write,
    ) as profiler:
        yield profiler


TRAINING = 3
"""A backward pass takes two products where the forward pass takes one; what is computed again is not counted."""


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """Work of a model's training step, one multiplication and addition being two operations.

    As in the costs of ``packs.parquet``: products with weights for each token, attention in whole tiles of 128 x 128,
    and the vision encoder by the loads of its units (Chowdhery et al. 2022, PaLM, appendix B).

    Attributes:
        per_token: operations of the language model's weights, of which a token passes only some experts.
        per_tile: operations of one tile over all layers and query heads.
    """

    per_token: float
    per_tile: float

    @classmethod
    def of(cls, model: nn.Module) -> StepWork:
        """The work of a model from ``load_model``, before it is sharded."""
        hugging_face: Any = model
        text = hugging_face.config.get_text_config()
        sizes = model_sizes(hugging_face.config)
        experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 1
        used = (getattr(text, "num_experts_per_tok", None) or 1) / experts
        weights = hugging_face.get_output_embeddings().weight.numel() + sum(
            parameter.numel() * (used if ".experts." in name else 1)
            for name, parameter in hugging_face.get_decoder().layers.named_parameters()
            if parameter.ndim > 1
        )
        layers = len(hugging_face.get_decoder().layers)
        return cls(
            per_token=TRAINING * 2 * weights,
            per_tile=TRAINING * 2 * 2 * TILE * TILE * sizes.num_heads * sizes.head_dim * layers,
        )

    def of_rank(self, batch: RankBatch) -> float:
        """The work of one rank's part of a pack. Only what lies on the CPU is read."""
        tiles = batch.tiles.n_tiles if batch.tiles is not None else count_tiles(batch)
        tokens = int((batch.doc_ids[batch.positions] >= 0).sum())
        vision = TRAINING * 2 * sum(unit.load for unit in batch.units)
        return self.per_token * tokens + self.per_tile * tiles + vision


def imbalance(of_ranks: list[float]) -> float | None:
    """The largest share over the mean one; None if there is no work."""
    mean = sum(of_ranks) / len(of_ranks)
    return max(of_ranks) / mean if mean > 0 else None

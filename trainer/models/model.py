"""The vision-language model of one rank: from a batch to the sum of its tokens' losses."""

from __future__ import annotations

import hashlib
import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trainer.attention import Attend
from trainer.data.batch import RankBatch
from trainer.models.config import ModelConfig
from trainer.models.connector import Connector
from trainer.models.decoder import Decoder
from trainer.models.features import FeatureExchange
from trainer.models.loss import LOGITS_BYTES, loss_sum
from trainer.models.vision import VisionEncoder

EMBEDDING_STD = 0.02
"""Standard deviation of new embeddings, as in GPT-2."""

UNIFORM_BOUND = math.sqrt(3)
"""A uniform distribution over [-b, b] has the standard deviation b / sqrt(3)."""


class VisionLanguageModel(nn.Module):
    """Vision encoder, connector and decoder over one rank's part of a pack.

    Shard each of :attr:`blocks`, then the whole: everything else, the output projection included, is used inside this
    module's own forward. Every rank uses every parameter in every step, whatever its batch holds.

    Args:
        config: dimensions, filled in by ``for_dataset``.
        recompute: run layers and blocks again in the backward pass instead of keeping their intermediate results.
        logits_bytes: the most bytes of logits that exist at once.
    """

    def __init__(self, config: ModelConfig, *, recompute: bool = False, logits_bytes: int = LOGITS_BYTES) -> None:
        super().__init__()
        self.config = config
        self.logits_bytes = logits_bytes
        self.vision = VisionEncoder(config.vision, recompute=recompute)
        self.connector = Connector(config)
        self.decoder = Decoder(config.decoder, recompute=recompute)

    @property
    def blocks(self) -> tuple[nn.Module, ...]:
        """The repeated parts, to be sharded one by one."""
        return (*self.vision.blocks, *self.decoder.layers)

    def forward(self, batch: RankBatch, attend: Attend, exchange: FeatureExchange) -> Float[Tensor, ""]:
        """The sum of loss weight x cross entropy over this rank's tokens, to be divided by all ranks' loss weights.

        Args:
            batch: this rank's part of a pack, on the model's device.
            attend: attention over the pack, bound to this batch.
            exchange: brings features to their tokens, bound to this batch.
        """
        return loss_sum(
            self.hidden(batch, attend, exchange),
            self.decoder.output_weight,
            batch.labels,
            batch.loss_weights,
            logits_bytes=self.logits_bytes,
            loss_tokens=batch.loss_tokens,
        )

    def hidden(self, batch: RankBatch, attend: Attend, exchange: FeatureExchange) -> Float[Tensor, "local hidden"]:
        """The last hidden states of this rank's tokens. Do not call it on a sharded model, which needs ``forward``."""
        features = exchange(self.connector(self.vision(batch.images)))
        hidden: Tensor = self.decoder(batch.tokens, batch.position_ids[0], features, exchange.slots, attend)
        return hidden


def build_model(
    config: ModelConfig,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    recompute: bool = False,
    logits_bytes: int = LOGITS_BYTES,
) -> VisionLanguageModel:
    """A new model on the CPU, the same on every machine and for any number of ranks. Shard it afterwards."""
    with torch.device("meta"):
        model = VisionLanguageModel(config, recompute=recompute, logits_bytes=logits_bytes)
    model.to_empty(device="cpu").to(dtype)
    model.connector.make_windows()
    initialise(model, seed)
    return model


@torch.no_grad()
def initialise(model: VisionLanguageModel, seed: int) -> None:
    """Sets every parameter from the seed and its own name, so that none depends on which others exist.

    Weights are uniform with variance 1 / inputs, or 1 / (2 x layers x inputs) where they write into a residual stream,
    so that it does not grow with depth (as in GPT-2). Embeddings have the standard deviation ``EMBEDDING_STD``, norms
    are one and biases zero. Numbers are drawn in float32 whatever the dtype. They are uniform because that takes only a
    shift and a product of random bits, while a normal distribution takes logarithms and cosines, whose last bits differ
    between processors.
    """
    depth = {"decoder": model.config.decoder.num_layers, "vision": model.config.vision.num_layers}
    for name, parameter in model.named_parameters():
        room, last = name.split(".")[0], name.split(".")[-2]
        if parameter.ndim == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        deviation = EMBEDDING_STD if "embedding" in name and "patch" not in name else parameter.shape[1] ** -0.5
        if last in ("o_proj", "out_proj", "down_proj") and room in depth:
            deviation *= (2 * depth[room]) ** -0.5
        generator = torch.Generator().manual_seed(_seed_of(seed, name))
        bound = deviation * UNIFORM_BOUND
        drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        parameter.copy_(drawn.uniform_(-bound, bound, generator=generator))


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little", signed=True)

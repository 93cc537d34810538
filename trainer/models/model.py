"""The vision-language model of one rank: from a batch to the sum of its tokens' losses."""

from __future__ import annotations

import hashlib
import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trainer.data.batch import RankBatch
from trainer.models.config import ModelConfig
from trainer.models.connector import Connector
from trainer.models.decoder import Attend, Decoder
from trainer.models.features import FeatureExchange
from trainer.models.loss import CHUNK, loss_sum
from trainer.models.vision import VisionEncoder

EMBEDDING_STD = 0.02


class VisionLanguageModel(nn.Module):
    """Vision encoder, connector and decoder over one rank's part of a pack.

    Shards by ``fully_shard`` on each of ``decoder.layers`` and ``vision.blocks``, then on the whole: everything else is
    used inside of this module's own forward, the output projection among it. Every rank uses every parameter in every
    step, whatever its batch holds.

    Args:
        config: dimensions, filled in by ``for_dataset``.
        recompute: run layers and blocks again in the backward pass instead of keeping what is inside of them.
        loss_chunk: tokens whose logits exist at once.
    """

    def __init__(self, config: ModelConfig, *, recompute: bool = False, loss_chunk: int = CHUNK) -> None:
        super().__init__()
        self.config = config
        self.loss_chunk = loss_chunk
        self.vision = VisionEncoder(config.vision, recompute=recompute)
        self.connector = Connector(config)
        self.decoder = Decoder(config.decoder, recompute=recompute)

    def forward(self, batch: RankBatch, attend: Attend, exchange: FeatureExchange) -> Float[Tensor, ""]:
        """The sum of loss weight x cross entropy over this rank's tokens, to be divided by all ranks' loss weights.

        Args:
            batch: this rank's part of a pack, on the model's device.
            attend: attention over the pack, bound to this batch.
            exchange: the way of features to tokens, bound to this batch.
        """
        return loss_sum(
            self.hidden(batch, attend, exchange),
            self.decoder.output_weight,
            batch.labels,
            batch.loss_weights,
            self.loss_chunk,
        )

    def hidden(self, batch: RankBatch, attend: Attend, exchange: FeatureExchange) -> Float[Tensor, "local hidden"]:
        """The last hidden states of this rank's tokens. Of a sharded model, call ``forward`` alone."""
        features = exchange(self.connector(self.vision(batch.images)))
        hidden: Tensor = self.decoder(batch.tokens, batch.position_ids, features, exchange.slots, attend)
        return hidden


def build_model(
    config: ModelConfig,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    recompute: bool = False,
    loss_chunk: int = CHUNK,
) -> VisionLanguageModel:
    """A new model on the CPU, the same on every rank, machine and for any number of ranks: shard it afterwards."""
    with torch.device("meta"):
        model = VisionLanguageModel(config, recompute=recompute, loss_chunk=loss_chunk)
    model.to_empty(device="cpu").to(dtype)
    model.connector.make_windows()
    initialise(model, seed)
    return model


@torch.no_grad()
def initialise(model: VisionLanguageModel, seed: int) -> None:
    """Sets every parameter from the seed and its own name, so none depends on which others there are.

    Weights are uniform with a variance of 1 / inputs, and of 1 / (2 x layers x inputs) where they write into a residual
    stream, so that its size does not grow with depth (as in GPT-2). Embeddings have a deviation of 0.02, norms are one,
    biases zero. Drawn as float32 whatever the dtype. Uniform, as that is a shift and a product of random bits: a normal
    distribution takes logarithms and cosines, whose last bits differ between processors.
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
        bound = deviation * math.sqrt(3)
        parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little", signed=True)

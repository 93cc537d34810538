"""AdamW with weight decay for matrices only, and the learning rate of each step."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import AdamW

from preshard.trainer.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> AdamW:
    """AdamW with decoupled decay (Loshchilov and Hutter 2019).

    Decay pulls weights towards zero. The natural value of a norm's gain is not zero, biases are too few to matter, and
    a row of an embedding has a gradient only in steps with its token, so rows of rare tokens would fade. Therefore only
    matrices that multiply activations decay. A tied embedding counts as an embedding.
    """
    embeddings = _embeddings(model)
    decayed: list[nn.Parameter] = []
    other: list[nn.Parameter] = []
    for parameter in model.parameters():
        (other if parameter.ndim < 2 or id(parameter) in embeddings else decayed).append(parameter)
    return AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": other, "weight_decay": 0.0}],
        lr=config.largest_lr,
        betas=(config.beta1, config.beta2),
        fused=True,
    )


def _embeddings(model: nn.Module) -> set[int]:
    """Identities of the weights of embedding layers, and of parameters named as an embedding or a learnt token."""
    layers = [id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)]
    own = ((name.rpartition(".")[2], parameter) for name, parameter in model.named_parameters())
    return {*layers, *(id(parameter) for name, parameter in own if "embed" in name or "token" in name)}


def learning_rate(step: int, config: TrainConfig) -> float:
    """Learning rate of a step, counted from 1: linear growth over ``warmup`` steps, then half a cosine to the last.

    It is a function of the step alone, so a resumed run needs no state for it.
    """
    if step <= config.warmup:
        return config.largest_lr * step / config.warmup
    done = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.largest_lr * (config.min_lr + (1 - config.min_lr) * (1 + math.cos(math.pi * min(done, 1.0))) / 2)

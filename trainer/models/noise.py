"""Noise of a model in training, such as dropout: the same whenever a step is done, and off where a loss wants none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


def seed_noise(seed: int, step: int, rank: int) -> None:
    """Sets what this rank draws in a step, on all its devices.

    It follows from the numbers alone, so a resumed run needs no generator's state. Ranks draw their own, as they hold
    different tokens.
    """
    torch.manual_seed(int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0]))


def train_without_noise(model: nn.Module) -> None:
    """Sets a model to train without noise.

    Whatever draws looks at its module's ``training``. Blocks that are computed again in the backward pass stay in
    training, without which ``transformers`` would keep what is inside of them: ``save_memory(..., noise=False)`` has
    them compute without.
    """
    model.eval()
    for module in model.modules():
        module.training = bool(getattr(module, "gradient_checkpointing", False))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model without noise and gradients; afterwards each of its parts is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode

"""AdamW in groups of parameters by their learning rates and by whether they decay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import nn
from torch.optim import AdamW

BETAS = (0.9, 0.95)
"""AdamW's decay rates for the mean of gradients and of their squares."""

OwnRate = tuple[Iterable[nn.Parameter], float]
"""Parameters with a peak learning rate of their own, and that rate."""


def make_optimizer(
    model: nn.Module, *, lr: float, weight_decay: float = 0.1, own_rates: Sequence[OwnRate] = ()
) -> AdamW:
    """AdamW with decoupled decay (Loshchilov and Hutter 2019) for the parameters that train, in groups by their rates.

    Each group has its peak rate to begin with.

    Decay pulls weights towards zero. The natural value of a norm's gain is not zero, biases are too few to matter, and
    a row of an embedding has a gradient only in steps with its token, so rows of rare tokens would fade. Therefore only
    matrices that multiply activations decay. A tied embedding counts as an embedding.

    Args:
        model: sharded or not.
        lr: peak learning rate.
        weight_decay: of the matrices that decay.
        own_rates: peak rates of some parameters; the last one that names a parameter counts.
    """
    embeddings = _embeddings(model)
    numbers = {id(each): number for number, (own, _) in enumerate(own_rates) for each in own}
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decays = parameter.ndim >= 2 and id(parameter) not in embeddings
            groups.setdefault((numbers.get(id(parameter), -1), decays), []).append(parameter)
    return AdamW(
        [
            {
                "params": groups[number, decays],
                "lr": lr if number < 0 else own_rates[number][1],
                "weight_decay": weight_decay if decays else 0.0,
            }
            for number, decays in sorted(groups, key=lambda group: (group[0], not group[1]))
        ],
        betas=BETAS,
        fused=True,
    )


def _embeddings(model: nn.Module) -> set[int]:
    """Identities of the weights of embedding layers, and of parameters named as an embedding or a learnt token."""
    layers = [id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)]
    own = ((name.rpartition(".")[2], parameter) for name, parameter in model.named_parameters())
    return {*layers, *(id(parameter) for name, parameter in own if "embed" in name or "token" in name)}


def learning_rate(step: int, *, peak: float, steps: int, warmup: int = 0, least: float = 0.0) -> float:
    """Learning rate of a step, counted from 1: linear growth over ``warmup`` steps, then half a cosine to the last.

    It is a function of the step alone, so a resumed run needs no state for it.

    Args:
        step: from 1 to ``steps``.
        peak: the largest rate.
        steps: of the run.
        warmup: steps of growth.
        least: the rate of the last step, as a fraction of the peak.
    """
    if step <= warmup:
        return peak * step / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    return peak * (least + (1 - least) * (1 + math.cos(math.pi * min(done, 1.0))) / 2)

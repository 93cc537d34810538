"""One optimiser step: packs in, updated parameters and the step's figures out."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float64
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from preshard.schemas.errors import PreshardError
from preshard.trainer.core.config import TrainConfig
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.device import to_device
from preshard.trainer.extra.preferences import REWARDS

BETAS = (0.9, 0.95)
"""AdamW's decay rates for the mean of gradients and of their squares."""


def make_optimizer(model: nn.Module, config: TrainConfig) -> AdamW:
    """AdamW with decoupled decay (Loshchilov and Hutter 2019) for the parameters that train, in groups by their rates.

    Each group has its peak rate to begin with.

    Decay pulls weights towards zero. The natural value of a norm's gain is not zero, biases are too few to matter, and
    a row of an embedding has a gradient only in steps with its token, so rows of rare tokens would fade. Therefore only
    matrices that multiply activations decay. A tied embedding counts as an embedding.
    """
    embeddings, rates = _embeddings(model), config.parts.rates
    rate_of = config.parts.rate_of(model)
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decays = parameter.ndim >= 2 and id(parameter) not in embeddings
            groups.setdefault((rate_of(parameter), decays), []).append(parameter)
    return AdamW(
        [
            {
                "params": groups[number, decays],
                "lr": config.largest_lr if number < 0 else rates[number][1],
                "weight_decay": config.weight_decay if decays else 0.0,
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


def learning_rate(step: int, config: TrainConfig) -> float:
    """Learning rate of a step, counted from 1: linear growth over ``warmup`` steps, then half a cosine to the last.

    It is a function of the step alone, so a resumed run needs no state for it.
    """
    if step <= config.warmup:
        return config.largest_lr * step / config.warmup
    done = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.largest_lr * (config.min_lr + (1 - config.min_lr) * (1 + math.cos(math.pi * min(done, 1.0))) / 2)


class DivergedError(PreshardError):
    """The loss or its gradient is infinite or NaN."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """A step over all ranks. Every rank computes the same bits, from the same gathered numbers in rank order.

    Attributes:
        loss_sum: sum of weight x cross entropy over all tokens.
        loss_weight: sum of the weights.
        tokens: tokens without padding.
        bytes_read: bytes asked from shards.
        data_time: seconds that the slowest rank waited for its packs.
        grad_norm: norm of the gradient of ``loss_sum``.
        stop: whether a rank was asked to stop.
        units: images and videos of all packs, in parts where ranks share them.
        packs: ids of the packs, in the order of the epoch.
        work: operations of each rank.
        compute_times: processor seconds of each rank's forward and backward passes; empty on CUDA.
        rewards: sums over pairs, by :data:`preshard.trainer.extra.preferences.REWARDS`; zeros without preferences.
    """

    loss_sum: float
    loss_weight: float
    tokens: int
    bytes_read: int
    data_time: float
    grad_norm: float
    stop: bool
    units: int
    packs: list[int]
    work: list[float]
    compute_times: list[float]
    rewards: list[float]


@dataclass(kw_only=True, slots=True)
class LocalTotals:
    """This rank's share of a step, added up pack by pack."""

    loss_sum: Float64[Tensor, ""]
    loss_weight: Float64[Tensor, ""]
    tokens: Float64[Tensor, ""]
    rewards: Float64[Tensor, "4"]
    bytes_read: int = 0
    data_time: float = 0.0
    work: float = 0.0
    compute_time: float = 0.0
    units: int = 0
    packs: list[int]

    @classmethod
    def zero(cls, device: torch.device) -> LocalTotals:
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return cls(loss_sum=zero, loss_weight=zero, tokens=zero, rewards=zero.repeat(len(REWARDS)), packs=[])

    def add(
        self,
        batch: RankBatch,
        loss_sum: Tensor,
        loss_weight: Tensor | float | None = None,
        rewards: Float64[Tensor, "4"] | None = None,
    ) -> None:
        """Counts one pack, by its tokens' weights if no other is given. Nothing here waits for the device."""
        self.loss_sum = self.loss_sum + loss_sum.detach()
        self.loss_weight = self.loss_weight + (
            batch.loss_weights.double().sum() if loss_weight is None else loss_weight
        )
        if rewards is not None:
            self.rewards = self.rewards + rewards
        self.tokens = self.tokens + (batch.doc_ids[batch.positions] >= 0).sum()
        self.bytes_read += batch.bytes_read
        self.units += len(batch.units)
        self.packs.append(batch.pack_id)


def take(batches: Iterator[RankBatch], local: LocalTotals) -> RankBatch:
    """The next batch; the time spent waiting for it is added to ``local.data_time``."""
    began = time.perf_counter()
    batch = next(batches)
    local.data_time += time.perf_counter() - began
    return batch


def join_totals(
    local: LocalTotals, parameters: list[nn.Parameter], *, replica: list[int], cp_size: int, stop: bool
) -> Totals:
    """Joins the ranks' shares by one all-gather of a few numbers, each summed in rank order.

    Args:
        local: this rank's share.
        parameters: this rank's shards, with gradients of the sum of all ranks' losses.
        replica: ranks of one replica of the parameters, which hold each number of the gradient once.
        cp_size: ranks that share a pack.
        stop: whether this rank was asked to stop.
    """
    device = local.loss_sum.device
    here = [local.bytes_read, local.data_time, stop, local.units, local.work, local.compute_time, *local.packs]
    counted = to_device(torch.tensor(here, dtype=torch.float64), device)
    of_gradients = to_device(_squares(parameters), device)
    measured = torch.stack([local.loss_sum, local.loss_weight, local.tokens, of_gradients])
    mine = torch.cat([measured, local.rewards, counted])
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    ranks = torch.stack(every).tolist()
    loss_sum, loss_weight, tokens, squares, *others = zip(*ranks, strict=True)
    rewards, others = others[: len(REWARDS)], others[len(REWARDS) :]
    bytes_read, data_time, stops, units, work, compute_times, *packs = others
    return Totals(
        loss_sum=sum(loss_sum),
        loss_weight=sum(loss_weight),
        tokens=int(sum(tokens)),
        bytes_read=int(sum(bytes_read)),
        data_time=max(data_time),
        grad_norm=sum(squares[rank] for rank in replica) ** 0.5,
        stop=any(stops),
        units=int(sum(units)),
        packs=[int(pack) for of_ranks in packs for pack in of_ranks[::cp_size]],
        work=list(work),
        compute_times=list(compute_times) if device.type == "cpu" else [],
        rewards=[sum(of_ranks) for of_ranks in rewards],
    )


def _squares(parameters: list[nn.Parameter]) -> Float64[Tensor, ""]:
    """Sum of squares of this rank's part of the gradient, where it lies, in float64: float32 loses digits over millions
    of terms.
    """
    if not (gradients := _own_gradients(parameters)):
        return torch.zeros((), dtype=torch.float64)
    return torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float64)).square().sum()


def _own_gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    """This rank's part of each gradient."""
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [each.to_local() if isinstance(each, DTensor) else each for each in found]


def apply_gradients(
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    totals: Totals,
    *,
    lr: float,
    clip: float,
    shares: Sequence[float] = (),
    of_features: Sequence[nn.Parameter] = (),
) -> None:
    """Turns gradients of the sum into those of the weighted mean, clips them by their norm, and takes the step.

    Each group of parameters has its share of the learning rate; all have the whole where no shares are given. If no
    token has a loss weight, there is nothing to learn: parameters and optimiser stay as they are. So do
    ``of_features``, the parameters that only images and videos reach, in a step without any: their gradients are there,
    as all ranks compute alike, and are zeros, by which AdamW would shrink them.

    Raises:
        DivergedError: the gradient's norm is infinite or NaN.
    """
    if totals.loss_weight > 0:
        norm = totals.grad_norm / totals.loss_weight
        if not norm < float("inf"):
            raise DivergedError(
                f"the gradient's norm is {norm} and the loss {totals.loss_sum / totals.loss_weight}, "
                f"on the packs {totals.packs}; "
                f"resume from a checkpoint with a lower --lr"
            )
        factor = min(1.0, clip / norm if norm else 1.0) / totals.loss_weight
        torch._foreach_mul_(_own_gradients(parameters), factor)
        for number, group in enumerate(optimizer.param_groups):
            group["lr"] = lr * (shares[number] if shares else 1.0)
        if not totals.units:
            _leave(optimizer, of_features)
        optimizer.step()
    optimizer.zero_grad()


def _leave(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """Takes parameters out of a step. Their moments are there, as checkpoints have those of every parameter."""
    for parameter in parameters:
        parameter.grad = None
        if parameter not in optimizer.state:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

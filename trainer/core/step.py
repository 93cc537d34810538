"""One optimiser step over all ranks: their shares joined, the gradient divided once, its norm over one replica."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float64
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from preshard.schemas.errors import PreshardError
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.device import to_device


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
        cached_bytes: bytes of these that came from the nodes' caches.
        retries: requests to a store that followed others which failed or were slow.
        data_time: seconds that the slowest rank waited for its packs.
        grad_norm: norm of the gradient of ``loss_sum``.
        stop: whether a rank was asked to stop.
        units: images and videos of all packs, in parts where ranks share them.
        packs: ids of the packs, in the order of the epoch.
        work: operations of each rank.
        compute_times: processor seconds of each rank's forward and backward passes; empty on CUDA.
        rewards: further sums of the loss, by their places in its ``figures``; empty where it has none.
    """

    loss_sum: float
    loss_weight: float
    tokens: int
    bytes_read: int
    cached_bytes: int
    retries: int
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
    """This rank's share of a step, added up pack by pack.

    Attributes:
        loss_sum: of this rank's tokens.
        loss_weight: of the same.
        tokens: of the same, without padding.
        rewards: further sums of the loss.
        bytes_read: asked from shards.
        cached_bytes: of these, from the node's cache.
        retries: of requests to a store.
        data_time: seconds that it waited for packs.
        work: operations, where somebody counts them.
        compute_time: processor seconds of forward and backward passes.
        units: images and videos, in parts where ranks share them.
        packs: their ids.
    """

    loss_sum: Float64[Tensor, ""]
    loss_weight: Float64[Tensor, ""]
    tokens: Float64[Tensor, ""]
    rewards: Float64[Tensor, "sums"]
    bytes_read: int = 0
    cached_bytes: int = 0
    retries: int = 0
    data_time: float = 0.0
    work: float = 0.0
    compute_time: float = 0.0
    units: int = 0
    packs: list[int]

    @classmethod
    def zero(cls, device: torch.device, n_rewards: int = 0) -> LocalTotals:
        """The share before the first pack, of a loss with so many further sums."""
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return cls(loss_sum=zero, loss_weight=zero, tokens=zero, rewards=zero.repeat(n_rewards), packs=[])

    def add(
        self,
        batch: RankBatch,
        loss_sum: Tensor,
        loss_weight: Tensor | float | None = None,
        rewards: Float64[Tensor, "sums"] | None = None,
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
        self.cached_bytes += batch.reads.get("cached_bytes", 0)
        self.retries += batch.reads.get("retries", 0)
        self.units += len(batch.units)
        self.packs.append(batch.pack_id)


def next_batch(batches: Iterator[RankBatch], local: LocalTotals) -> RankBatch:
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
    read = [local.bytes_read, local.cached_bytes, local.retries]
    here = [*read, local.data_time, stop, local.units, local.work, local.compute_time, *local.packs]
    counted = to_device(torch.tensor(here, dtype=torch.float64), device)
    of_gradients = to_device(_squares(parameters), device)
    measured = torch.stack([local.loss_sum, local.loss_weight, local.tokens, of_gradients])
    mine = torch.cat([measured, local.rewards, counted])
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    ranks = torch.stack(every).tolist()
    loss_sum, loss_weight, tokens, squares, *others = zip(*ranks, strict=True)
    n_rewards = len(local.rewards)
    rewards, others = others[:n_rewards], others[n_rewards:]
    bytes_read, cached_bytes, retries, data_time, stops, units, work, compute_times, *packs = others
    return Totals(
        loss_sum=sum(loss_sum),
        loss_weight=sum(loss_weight),
        tokens=int(sum(tokens)),
        bytes_read=int(sum(bytes_read)),
        cached_bytes=int(sum(cached_bytes)),
        retries=int(sum(retries)),
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
    """Turns gradients of the sum into those of the weighted mean, clips them by their norm, unless ``clip`` is 0, and
    takes the step.

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
        factor = min(1.0, clip / norm if clip and norm else 1.0) / totals.loss_weight
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


def seed_noise(seed: int, step: int, rank: int) -> None:
    """Sets what this rank draws in a step, on all its devices.

    It follows from the numbers alone, so a resumed run needs no generator's state. Ranks draw their own, as they hold
    different tokens.
    """
    torch.manual_seed(int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0]))

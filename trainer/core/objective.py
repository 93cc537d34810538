"""Objective of a run: the loss that a rank takes the gradient of, and its share of the sums of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.core.config import TrainConfig
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.processes import AnyRank, StoppedError
from preshard.trainer.core.setup import Job, routers_weight
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extras import load_extra
from preshard.trainer.models.packed import PackedModel


class PackLoss(NamedTuple):
    """A pack on one rank.

    Attributes:
        loss: what this rank takes the gradient of.
        loss_sum: its share of the sum of the losses.
        loss_weight: its share of their weights; None for those of its tokens.
        rewards: its share of further sums, one for each name of the objective's ``figures``.
    """

    loss: Tensor
    loss_sum: Tensor
    loss_weight: Tensor | float | None = None
    rewards: Float64[Tensor, "sums"] | None = None


class Objective(Protocol):
    """A loss of a model on packs. All ranks of a pack call it together."""

    figures: tuple[str, ...]
    """Names of its further sums, whose means over the loss weights are figures of the step."""

    def __call__(self, model: PackedModel, batch: RankBatch, cp: ContextParallel) -> PackLoss: ...


class NextToken:
    """The sum of loss weight x cross entropy over this rank's tokens.

    Args:
        exchanges: how ranks exchange, as arguments of the model's call.
    """

    figures: tuple[str, ...] = ()

    def __init__(self, **exchanges: Any) -> None:
        self._exchanges = exchanges

    def __call__(self, model: PackedModel, batch: RankBatch, cp: ContextParallel) -> PackLoss:
        loss = model(batch, cp, **self._exchanges)
        return PackLoss(loss=loss, loss_sum=loss)


def find_objectives(job: Job, mesh: Mesh, model: PackedModel, stop: Callable[[], bool]) -> tuple[Objective, Objective]:
    """The objectives of a run's training and of its evaluation. All ranks call this, before a checkpoint is loaded.

    Raises:
        StoppedError: a rank was asked to stop; all ranks raise it.
    """
    exchanges, routers = exchanges_of(job.config), routers_weight(job.config, model.inner)
    if job.config.loss == "next_token":
        plain = load_extra("router_loss").WithRouters(routers, **exchanges) if routers else NextToken(**exchanges)
        return plain, plain
    found: tuple[Objective, Objective] = load_extra("preferences").objectives(job, mesh, model, stop)
    return found


def exchanges_of(config: TrainConfig) -> dict[str, Any]:
    """Arguments of the model's call that say how ranks exchange."""
    return {"attention": config.attention, "overlap": config.overlap, "head_stride": config.head_stride}


def deal_packs(
    dataset: PackedDataset, mesh: Mesh, stop: Callable[[], bool] = lambda: False
) -> Iterator[tuple[RankBatch, bool]]:
    """This rank's packs of a dataset that is opened with ``dp_size`` 1, and whether they count here.

    Where the last round has fewer packs than data-parallel ranks, those without one take the last pack again and do not
    count it, as all must run the same collectives.

    Args:
        dataset: the packs.
        mesh: of all ranks, which take the packs together.
        stop: whether this rank was asked to stop.

    Raises:
        StoppedError: a rank was; all ranks raise it in the same round, one later.
    """
    asked = AnyRank()
    for first in range(0, dataset.n_packs, mesh.dp_size):
        if asked(stop()):
            raise StoppedError
        number = first + mesh.dp_rank
        yield dataset.read_step(0, min(number, dataset.n_packs - 1)), number < dataset.n_packs


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

"""The loss on a second dataset, without learning from it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import torch
import torch.distributed as dist

from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.distributed.mesh import Mesh
from preshard.trainer.models import PackedModel


def evaluate(model: PackedModel, dataset: PackedDataset, mesh: Mesh, **exchanges: Any) -> float | None:
    """The mean loss over every pack of a dataset, each token by its weight. All ranks call this.

    Every pack counts once, however many are taken at a time: where the last round has fewer packs than data-parallel
    ranks, those without one repeat an earlier pack and do not count it, as all must run the same collectives.

    Args:
        model: stays as it is.
        dataset: opened with ``dp_size`` 1; the packs are dealt here.
        mesh: of all ranks.
        exchanges: as for ``PackedModel``.

    Returns:
        The same on all ranks. None if no token of the dataset has a loss.
    """
    device = torch.device(mesh.world.device_type)
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    model.eval()
    with torch.no_grad():
        for batch, counts in _rounds(dataset, mesh):
            loss = model(batch, mesh.cp, **exchanges)
            if counts:
                sums += torch.stack([loss.double(), batch.loss_weights.double().sum().to(device)])
    model.train()
    dist.all_reduce(sums)
    total, weight = sums.tolist()
    return total / weight if weight > 0 else None


def _rounds(dataset: PackedDataset, mesh: Mesh) -> Iterator[tuple[RankBatch, bool]]:
    """This rank's packs of each round, and whether they count here."""
    dataset.set_epoch(0)
    rounds = -(-dataset.n_packs // mesh.dp_size)
    mine = ((batch, True) for batch in dataset.steps(mesh.dp_rank, mesh.dp_size))
    first = ((batch, False) for batch in dataset.steps(0, dataset.n_packs))
    yield from islice(chain(mine, first), rounds)
    dataset.set_epoch(0)

"""Learning rate of a step, and packs of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.processes import AnyRank, StoppedError
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset


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

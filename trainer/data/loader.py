"""A rank's batches without end, read and decoded in the background."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from trainer.data.batch import RankBatch
from trainer.data.dataset import PackedDataset

START_METHOD = "spawn"
"""How workers start. Not ``fork``: a forked child has the locks of the parent's threads without the threads, and the
parent's sockets. Object-store clients, a process group's transport and CUDA hang or break in it. Not ``forkserver``: it
starts no sooner, unless it imports pyarrow before it forks, which is what is to be avoided."""

PREFETCH = 2
"""Batches that each worker reads ahead. A batch of video is up to a few hundred MB of pixels."""


class PackStream(IterableDataset[RankBatch]):
    """The steps of one epoch after the other, without end, from the dataset's position on.

    Workers share the stream out, not the epochs: worker w of n gives the steps w, w + n, ... counted from where the
    stream began. Each keeps count of the epochs by itself, so workers that stay need not be told of a new one, and the
    loader's turns, which do not begin anew with an epoch, stay in step with it.

    The dataset itself stays where it is: iterating works on a copy, with workers as without. The position to save is
    ``RankBatch.state``.
    """

    def __init__(self, dataset: PackedDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[RankBatch]:
        dataset, worker = copy.copy(self.dataset), get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        dataset.load_state_dict(self.dataset.state_dict())  # a pass that was broken off counts as a whole from here
        given = 0
        while True:
            begin, given = given, given + len(dataset)
            yield from dataset.steps((first - begin) % every, every)


def make_loader(dataset: PackedDataset, *, workers: int, device: torch.device | str) -> DataLoader[RankBatch]:
    """Loads batches without end, epoch after epoch, from the dataset's position (``set_epoch``, ``load_state_dict``).

    Set the position before: what the loader gives next is decided when it is iterated. With workers, reading and
    decoding go on while a step computes, ``PREFETCH`` batches a worker ahead. For a CUDA device batches come in
    page-locked memory, so that ``batch.to(device, non_blocking=True)`` overlaps with work too. An error in a worker
    reaches the loop as the same exception.

    A script that is given workers must be importable (``if __name__ == "__main__"``), as it is with every start method
    but ``fork``.

    Args:
        dataset: where to read from; its copies in the workers count their own ``bytes_read``, each batch says its own.
        workers: background processes; 0 reads in this one, in between the steps.
        device: what the batches are for. They are on the CPU.
    """
    background = {"multiprocessing_context": START_METHOD, "prefetch_factor": PREFETCH} if workers else {}
    return DataLoader(
        PackStream(dataset),
        batch_size=None,
        num_workers=workers,
        pin_memory=torch.device(device).type == "cuda",
        **background,  # type: ignore[arg-type]
    )

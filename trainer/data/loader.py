"""An endless stream of a rank's batches, read and decoded in the background."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.position import worker_share

START_METHOD = "spawn"
"""Start method of workers. Not ``fork``: a forked child has the locks of the parent's threads without the threads, and
the parent's sockets, so object-store clients, a process group's transport and CUDA hang or break in it. Not
``forkserver``: it is no faster unless it imports pyarrow before forking, which brings the same trouble."""

PREFETCH = 2
"""Batches that each worker reads ahead. A batch of video can be a few hundred MB of pixels."""


class PackStream(IterableDataset[RankBatch]):
    """The steps of one epoch after another, without end, from the dataset's position.

    Workers share the stream, not each epoch: worker w of n takes the steps w, w + n, ... counted from the start of the
    stream. Each counts the epochs by itself, so they need not be told about a new one, and the loader's turns, which do
    not restart with an epoch either, match theirs.

    Iteration works on a copy and leaves the dataset where it is, with or without workers. The position to save is
    ``RankBatch.state``, or the ``state_dict()`` of torchdata's ``StatefulDataLoader`` around the stream.

    Args:
        dataset: where the stream begins.
        list_tiles: see :func:`make_loader`.
    """

    def __init__(self, dataset: PackedDataset, list_tiles: Callable[[RankBatch], Any] | None = None) -> None:
        self.dataset, self._list_tiles = dataset, list_tiles
        self._reading: PackedDataset | None = None

    def __iter__(self) -> Iterator[RankBatch]:
        self._reading = None
        # a worker begins when it is asked to: by its first step, the dataset in the main process may have moved
        return self._batches(None if worker_share() is None else self._begin())

    def _begin(self) -> Iterator[RankBatch]:
        self._reading = self.dataset.lend()
        return self._reading.stream()

    def _batches(self, begun: Iterator[RankBatch] | None) -> Iterator[RankBatch]:
        for batch in begun if begun is not None else self._begin():
            yield batch if self._list_tiles is None else prepare(batch, self._list_tiles)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch of the newest iteration; as ``PackedDataset.state_dict`` in a worker."""
        return (self._reading if self._reading is not None else copy.copy(self.dataset)).state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the dataset to a position; iterations begin there. Raises as ``PackedDataset.load_state_dict`` does."""
        self.dataset.load_state_dict(state)
        self._reading = None


def make_loader(
    dataset: PackedDataset,
    *,
    workers: int,
    device: torch.device | str,
    list_tiles: Callable[[RankBatch], Any] | None = None,
) -> DataLoader[RankBatch]:
    """Loads batches without end, epoch after epoch, from the dataset's position (``set_epoch``, ``load_state_dict``).

    Set the position first: iterating the loader fixes what it returns. With workers, reading and decoding happen while
    a step computes, ``PREFETCH`` batches per worker ahead. For a CUDA device, batches are in page-locked memory, so
    that ``batch.to(device, non_blocking=True)`` overlaps with computation too. An error in a worker reaches the loop as
    the same exception.

    With workers the calling script must be importable (``if __name__ == "__main__"``), as with every start method other
    than ``fork``.

    Args:
        dataset: what to read. Its copies in the workers count their own ``bytes_read``; each batch has its own.
        workers: background processes; 0 reads in this process, between the steps.
        device: where the batches will be used. They are returned on the CPU.
        list_tiles: for a ``PackedModel``: called with each batch where it is read; what it returns becomes
            ``RankBatch.tiles``, and pictures become ``RankBatch.levels``. A
            ``preshard.trainer.attention.listed.TileLister``, or another function that can be pickled.
    """
    return DataLoader(PackStream(dataset, list_tiles), batch_size=None, **loading(workers, device))


def prepare(batch: RankBatch, list_tiles: Callable[[RankBatch], Any]) -> RankBatch:
    """A batch with all that a step of a ``PackedModel`` would otherwise work out of it on the host."""
    return replace(batch.with_levels(), tiles=list_tiles(batch))


def loading(workers: int, device: torch.device | str) -> dict[str, Any]:
    """Keyword arguments of a ``DataLoader`` of batches. See :func:`make_loader`."""
    background = {
        "multiprocessing_context": START_METHOD,
        "prefetch_factor": PREFETCH,
        "worker_init_fn": _leave_signals_to_the_loop,
    }
    found = {"num_workers": workers, "pin_memory": torch.device(device).type == "cuda"}
    return found | background if workers else found


def _leave_signals_to_the_loop(worker: int) -> None:  # noqa: ARG001 (torch gives it)
    """torchrun signals a rank's whole process group, and a loop whose worker has died could not save a checkpoint.

    Workers end with their loader, or within seconds of the process that iterates it.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

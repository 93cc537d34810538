"""A loader's workers without processes: copies that read ahead, each in its turn."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from preshard.trainer.data.loader import PackStream


@contextmanager
def as_worker(number: int, count: int) -> Iterator[None]:
    """Makes this process one of a loader's workers."""
    with pytest.MonkeyPatch.context() as patch:
        info = SimpleNamespace(id=number, num_workers=count)
        patch.setattr("preshard.trainer.data.position.get_worker_info", lambda: info)
        yield


class SimulatedWorkers:
    """Workers of a dataset or a stream, and what torchdata's loader keeps of them.

    Args:
        what: the dataset or stream.
        count: how many workers.
        states: of each worker, to resume from.
        given: batches that were given before.
    """

    def __init__(self, what: Any, count: int, states: list[Any] | None = None, *, given: int = 0) -> None:
        self._count, self._given = count, given
        self._copies = [copy.copy(what) for _ in range(count)]
        self._iterators, self.states = [], []
        self._ahead: list[list[tuple[Any, Any]]] = [[] for _ in range(count)]
        for number, mine in enumerate(self._copies):
            if isinstance(mine, PackStream):
                mine.dataset = copy.copy(mine.dataset)
            with as_worker(number, count):
                if states is not None:
                    mine.load_state_dict(json.loads(json.dumps(states[number])))
                self._iterators.append(iter(mine))
                self.states.append(mine.state_dict())

    def read(self, number: int) -> None:
        """One worker reads a batch ahead."""
        with as_worker(number, self._count):
            self._ahead[number].append((next(self._iterators[number], None), self._copies[number].state_dict()))

    def give(self) -> Any:
        """The batch whose turn it is; None when its worker has no more."""
        number = self._given % self._count
        if not self._ahead[number]:
            self.read(number)
        batch, state = self._ahead[number].pop(0)
        self._given += 1
        if batch is not None:
            self.states[number] = state
        return batch

"""Position of a copy of a dataset, in whichever process it is read, and the states that say so."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from preshard.schemas.errors import ReaderError
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.order import Stream
from preshard.trainer.extras import load_extra


class Step(NamedTuple):
    """A step of a pass, the epoch and position where it begins, and the state after it."""

    number: int
    epoch: int
    position: int
    state: dict[str, Any]


ReadSteps = Callable[[Iterator[Step]], Iterator[tuple[Step, RankBatch]]]
"""Reads the packs of steps, one after the other."""

LEFT = (
    "the loader's last iteration was left in the middle, and what its persistent workers had read ahead is lost: call "
    "set_epoch or load_state_dict before the next one, or leave persistent_workers off"
)
MOVED = (
    "the dataset was set to another position, or iterated anew, while this iteration went on: set it before the loader "
    "starts (StatefulDataLoader.state_dict() starts it too), or open a second PackedDataset"
)
LENT = (
    "state_dict() does not know what a loader's workers or a stream have given from copies of this dataset: save "
    "RankBatch.state of the last batch, or the state_dict() of a StatefulDataLoader"
)


class Share(NamedTuple):
    """Number of this worker, from 0, and number of workers: of n, it reads every n-th step."""

    worker: int
    workers: int


def worker_share() -> Share | None:
    """The share of the worker process that this is; None outside of workers."""
    worker = get_worker_info()
    return None if worker is None else Share(worker.id, worker.num_workers)


class Board:
    """Messages between a dataset and its copies in workers, in memory that they share.

    A loader calls nothing when the dataset is set to a position after workers have started, nor when they read.
    """

    def __init__(self) -> None:
        self._numbers = RawArray("q", 4)

    def post(self, position: tuple[int, int]) -> None:
        """Tells copies the epoch and position that the dataset was set to."""
        self._numbers[1:] = [*position, False]
        self._numbers[0] += 1

    @property
    def times(self) -> int:
        """The number of times the dataset was set."""
        return self._numbers[0]

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and position that it was last set to."""
        return self._numbers[1], self._numbers[2]

    @property
    def is_lent(self) -> bool:
        """Whether copies have been read since."""
        return bool(self._numbers[3])

    def lend(self) -> None:
        self._numbers[3] = True


class Position:
    """The position of one copy of a dataset: where its pass began, and which steps the copy has given since.

    In a process of its own, a copy gives all steps, and its state is the pack after the last one. Worker w of n gives
    the steps w, w + n, ... of a pass, and has its state count its own: which steps others have given, it cannot know.

    Args:
        order: the stream of packs.
        name: what states must agree in: ``dataset_id`` and ``seed``.
        dp_size: packs of a step.
    """

    def __init__(self, order: Stream, *, name: dict[str, Any], dp_size: int) -> None:
        self._order, self._name, self._dp_size = order, name, dp_size
        self._board, self._seen, self._owner = Board(), 0, os.getpid()
        self._worker: Share | None = None
        self._is_loan = False
        self._go_to(0, 0)

    @property
    def epoch(self) -> int:
        return self._at[0]

    def __len__(self) -> int:
        return self._order.steps_left(self._begin[1], self._dp_size)

    def set_epoch(self, epoch: int) -> None:
        if epoch < 0:
            raise ReaderError(f"epoch is {epoch}; epochs count from 0: take 0 or more")
        if not (self._just_loaded and self.epoch == epoch and not self._board.is_lent):
            self._set(epoch, self._order.first_position(epoch, self._begin, self._dp_size))

    def _set(self, epoch: int, position: int) -> None:
        self._own()
        self._go_to(epoch, position)
        self._worker = worker_share()
        if self._worker is None:
            self._board.post(self._begin)
        self._seen = self._board.times

    def _own(self) -> None:
        """Gives a copy a board of its own in a process that is no loader's worker, such as a rank's."""
        if self._owner != os.getpid() and worker_share() is None:
            self._board, self._seen, self._owner = Board(), 0, os.getpid()

    def _go_to(self, epoch: int, position: int) -> None:
        self._begin = self._at = (epoch, position)
        self._given, self._ended, self._just_loaded = 0, False, False
        self._running: object = None

    def state_dict(self) -> dict[str, Any]:
        self._own()
        worker = worker_share()
        if worker is None and self._board.is_lent and not self._is_loan:
            raise ReaderError(LENT)
        if worker is None or worker.workers == 1:
            return self.state_at(*self._at)
        begin, given = (self._begin, self._given) if worker == self._worker else (self._at, 0)
        return {**self.state_at(*begin), **self._share(worker), "steps": given}

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """The :meth:`state_dict` at a position."""
        epoch, position = self._order.normal(epoch, position)
        return {**self._name, "epoch": epoch, "position": position}

    def _share(self, worker: Share | None) -> dict[str, int]:
        """Entries by which a state names a worker that is not the only one."""
        if worker is None or worker.workers == 1:
            return {}
        return {**worker._asdict(), "dp_size": self._dp_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        share = None if worker_share() is None else self._share(worker_share())
        epoch, position, steps = load_extra("loader_states").checked(state, self._order, self._name, share)
        self._set(*self._order.normal(epoch, position))
        self._given, self._just_loaded = steps, True

    def iterate(self, read: ReadSteps, *, endless: bool) -> Iterator[RankBatch]:
        """This process's share of the steps from the current position on."""
        self._own()
        if (worker := worker_share()) is None:
            return self._iterate_alone(read, endless)
        if self._enter(worker):
            return _refused(LEFT)
        return self.steps(read, worker.worker + worker.workers * self._given, worker.workers, endless=endless)

    def _iterate_alone(self, read: ReadSteps, endless: bool) -> Iterator[RankBatch]:
        self._go_to(*self._at)
        yield from self.steps(read, 0, 1, endless=endless)

    def _enter(self, worker: Share) -> bool:
        """Begins a worker's pass, when it is asked for and not at its first step, as the main process goes on then.

        Returns:
            Whether persistent workers had left one in the middle, and the dataset has not been set since.
        """
        load_extra("threads").finish_sending_at_exit()
        self._follow(worker)
        self._board.lend()
        if self._ended:
            self._go_to(*self._order.next_pass(self._begin[0], self._begin[1] + len(self) * self._dp_size))
        return self._running is not None

    def _follow(self, worker: Share) -> None:
        """Goes, in a worker, to where the main process has set the dataset since this copy last looked."""
        if self._seen != self._board.times:
            self._go_to(*self._board.position)
        elif self._worker != worker:
            self._go_to(*self._at)
        self._worker, self._seen = worker, self._board.times

    def steps(self, read: ReadSteps, first: int, every: int, *, endless: bool) -> Iterator[RankBatch]:
        running = self._running = object()
        self._just_loaded = False
        if self._given and not endless and first >= len(self) + every:
            raise ReaderError(
                f"state's steps are {self._given}, more than a pass has: it is of a PackStream, not of this"
            )
        epoch, begin = self._order.next_pass(self._begin[0], self._begin[1] + len(self) * self._dp_size)
        for step, batch in read(self._places(first, every, endless)):
            self._given, self._at = self._given + 1, (step.epoch, step.position + self._dp_size)
            yield batch
            if self._running is not running or self._was_set_elsewhere():
                raise ReaderError(MOVED)
        if self._worker is None:
            self._go_to(epoch, begin)
        else:  # a state is still one of this pass, in which other workers are
            self._running, self._ended = None, True

    def _places(self, number: int, every: int, endless: bool) -> Iterator[Step]:
        epoch, begin = self._begin
        while True:
            steps = self._order.steps_left(begin, self._dp_size)
            while number < steps:
                at = begin + number * self._dp_size
                yield Step(number, epoch, at, self.state_at(epoch, at + self._dp_size))
                number += every
            if not endless:
                return
            number -= steps
            epoch, begin = self._order.next_pass(epoch, begin + steps * self._dp_size)

    def _was_set_elsewhere(self) -> bool:
        """Whether the dataset that this copy reads for has since been set to where this copy did not begin."""
        return self._seen != self._board.times and self._begin != self._board.position

    def lend(self) -> Position:
        """A copy for a stream to read by, which ends with an error when this one is set to another position.

        This one's own state is refused from then on, as it does not say how far reading has come.
        """
        self._own()
        if (worker := worker_share()) is not None:
            self._follow(worker)
        self._board.lend()
        loan = copy.copy(self)
        loan._board, loan._seen, loan._is_loan = self._board, self._board.times, True
        if self._given and worker is not None:
            self._running = loan  # what this worker had given is gone on from once: a loader's turns start over then
        return loan

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the board out, except for processes that this one starts: only they hear of where it is set; other
        copies are positions of their own.
        """
        self._own()
        spawning = get_spawning_popen() is not None
        return {name: value for name, value in self.__dict__.items() if spawning or name != "_board"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_board" not in state:
            self._board, self._seen, self._owner = Board(), 0, os.getpid()


def _refused(why: str) -> Iterator[RankBatch]:
    """Fails at its first step: only there does torch's worker hand an error on to the loop."""
    yield from ()
    raise ReaderError(why)

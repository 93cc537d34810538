"""Other people's loaders: torch's and torchdata's give every pack once, in order, and resume exactly or refuse to."""

from __future__ import annotations

import gc
import itertools
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import pytest
from simulated_workers import SimulatedWorkers, as_worker
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.stateful_dataloader import _StatefulMultiProcessingDataLoaderIter

from preshard.schemas.errors import ReaderError
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import PackStream, make_loader
from preshard.trainer.data.order import EndlessEpochs, epoch_order

Open = Callable[..., PackedDataset]

KINDS = {"pass": lambda dataset: dataset, "stream": PackStream}
"""Kinds of input for a loader: a dataset, which ends with its epoch, or a stream, which does not."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than processors
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # in torchdata
]


@pytest.fixture
def opened(packed: Path, ids_only: Callable[[PackedDataset], PackedDataset]) -> Open:
    """Opens 10 packs of which no byte is read."""
    return lambda **given: ids_only(PackedDataset(packed, seed=5, **given))


def _packs(count: int, dp_rank: int = 0, dp_size: int = 1, epoch: int = 0, tail: str = "wrap") -> list[int]:
    """The first packs of a rank from the start of an epoch on, by the definition."""
    if tail == "wrap":
        stream = EndlessEpochs([10], windows=[4], shares=[1], seed=5)
        first = -10 * epoch % dp_size + dp_rank
        return [stream.place(epoch, first + step * dp_size)[1] for step in range(count)]
    found: list[int] = []
    while len(found) < count:
        found += epoch_order(10, window=4, seed=5, epoch=epoch).tolist()[dp_rank : 10 // dp_size * dp_size : dp_size]
        epoch += 1
    return found[:count]


@pytest.fixture(autouse=True)
def ended_workers() -> Iterator[None]:
    """Ends what loaders have started. Left to the garbage collector, which would run in forks as well, each worker of
    a half-read loader takes the seconds for which its loader waits.
    """
    gc.disable()
    yield
    if active_children():
        for each in gc.get_objects():
            # by type: asked for its class, a weak reference to what is gone raises
            if type(each) in (_MultiProcessingDataLoaderIter, _StatefulMultiProcessingDataLoaderIter):
                each._shutdown_workers()
    gc.enable()


def _forked(what: Any, workers: int, **given: Any) -> StatefulDataLoader:
    context = "fork" if workers else None
    return StatefulDataLoader(what, batch_size=None, num_workers=workers, multiprocessing_context=context, **given)


def _ids(batches: Any, count: int | None = None) -> list[int]:
    return [batch.pack_id for batch in itertools.islice(batches, count)]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("dp_size", "tail"), [(1, "wrap"), (3, "wrap"), (3, "drop")])
@pytest.mark.parametrize("kind", KINDS)
def test_workers_resume_at_every_step(opened: Open, kind: str, dp_size: int, tail: str, workers: int) -> None:
    """Fails when a worker's state is not what this worker has given: others' packs would be lost or come twice."""
    part = {"dp_rank": dp_size - 1, "dp_size": dp_size, "tail": tail}
    in_epoch = 10 // dp_size + (tail == "wrap" and 10 % dp_size > 0)
    expected = _packs(in_epoch if kind == "pass" else 22, **part)
    assert kind == "pass" or len(expected) > in_epoch, "an epoch ends on the way"
    chosen = random.Random(workers)
    for stop in range(len(expected) + 1):
        loader = SimulatedWorkers(KINDS[kind](opened(**part)), workers)
        seen = []
        for _ in range(stop):
            loader.read(chosen.randrange(workers))
            seen.append(loader.give().pack_id)
        again = SimulatedWorkers(KINDS[kind](opened(**part)), workers, loader.states, given=stop)
        assert again.states == loader.states
        assert seen + [again.give().pack_id for _ in range(len(expected) - stop)] == expected
        if kind == "pass" and (workers > 1 or tail == "drop" or stop < len(expected)):  # else it is the next epoch's
            assert not any(again.give() for _ in range(2 * workers))


@pytest.mark.parametrize("tail", ["wrap", pytest.param("drop", marks=pytest.mark.slow)])
def test_a_torchdata_state_goes_on_with_other_ranks_and_workers(opened: Open, tail: str) -> None:
    """Fails when what workers have given is not joined to one position: of 4 ranks with 2 workers, which read ahead,
    to 3 with none and 2 with 3; at every step, in the second epoch too, and between two snapshots.
    """
    shapes = [(4, 2, 1), (4, 2, 3), (4, 0, 1), (3, 3, 2), (4, 1, 1)]
    for dp_size, workers, every in shapes:
        opened_as: dict[str, Any] = {"dp_size": dp_size, "tail": tail}
        loader = _forked(PackStream(opened(**opened_as)), workers, snapshot_every_n_steps=every)
        for steps, batch in enumerate(itertools.islice(loader, 7), start=1):
            state = json.loads(json.dumps(loader.state_dict()))
            for then in (1, 3):
                ours, theirs = (opened(dp_size=then, tail=tail) for _ in range(2))
                ours.load_state_dict(state)
                theirs.load_state_dict(batch.state)
                assert _ids(PackStream(ours), 9) == _ids(PackStream(theirs), 9), (dp_size, workers, every, steps)
        assert batch.state["epoch"] > 0


def test_a_torchdata_state_that_cannot_be_joined_is_refused(opened: Open) -> None:
    """Fails when a position is guessed from one worker's snapshot, or one is joined from what no loader has saved."""
    loader = _forked(PackStream(opened()), 1, snapshot_every_n_steps=2)
    batches = iter(loader)
    _ids(batches, 3)
    with pytest.raises(ReaderError, match="state is 1 step behind its loader: save with snapshot_every_n_steps=1"):
        opened().load_state_dict(loader.state_dict())
    loader = _forked(PackStream(opened()), 2)
    batches = iter(loader)
    _ids(batches, 3)
    state = loader.state_dict()
    for each in state["_snapshot"]["_worker_snapshots"].values():
        each["dataset_state"]["dp_size"] = 11
    with pytest.raises(ReaderError, match="state's dp_size is 11; it must be from 1 to 10 packs"):
        opened().load_state_dict(state)
    with pytest.raises(ReaderError, match="state is of tail 'wrap', not 'drop'"):
        opened(tail="drop").load_state_dict(_forked(PackStream(opened()), 0).state_dict())


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        pytest.param(kind, workers, marks=[pytest.mark.slow] * (workers and kind == "pass"))
        for kind in KINDS
        for workers in (0, 2)
    ],
)
def test_torchdata_resumes_exactly(opened: Open, kind: str, workers: int) -> None:
    """Fails when torchdata's loader collects or restores workers' states in another way than they are meant."""
    expected = _packs(10 if kind == "pass" else 14, epoch=2)
    for stop, every in [(0, 1), (8, 3), (10, 1)]:
        first, again = [_forked(KINDS[kind](opened(epoch=2)), workers, snapshot_every_n_steps=every) for _ in range(2)]
        before = first.state_dict() if stop == 0 else None  # starts the workers, which `iter` then takes over
        batches = iter(first)
        seen = _ids(batches, stop)
        again.load_state_dict(json.loads(json.dumps(before or first.state_dict())))
        assert seen + _ids(again, len(expected) - stop) == expected
    assert kind == "stream" or len(first) == 10


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_goes_on_with_the_epoch_after_a_finished_one(opened: Open, workers: int) -> None:
    """Fails when a state that was taken at an epoch's end repeats the epoch, or leaves one out."""
    first = _forked(opened(), workers)
    assert _ids(first) == _packs(10)
    dataset = opened()
    again = _forked(dataset, workers)
    again.load_state_dict(first.state_dict())
    dataset.set_epoch(1)
    assert _ids(again) == _packs(10, epoch=1)


def test_persistent_workers_begin_where_the_dataset_is_set(packed: Path) -> None:
    """Fails when set_epoch does not reach workers that are there already, a resumed pass is not exact in them, or the
    dataset in the main process gives a position that it cannot know.
    """
    part = {"ulysses_degree": 8, "cp_rank": 7, "seed": 5}
    given = {"batch_size": None, "num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    dataset = PackedDataset(packed, **part)
    loader = StatefulDataLoader(dataset, **given)
    assert dataset.state_dict()["position"] == 0
    assert _ids(loader) == _packs(10)
    with pytest.raises(ReaderError, match=r"save RankBatch\.state of the last batch, or the state_dict\(\) of"):
        dataset.state_dict()
    assert _ids(loader) == _packs(10, epoch=1), "the next epoch, by themselves"
    dataset.set_epoch(3)
    assert dataset.state_dict()["epoch"] == 3
    seen = _ids(loader, 3)
    state = loader.state_dict()
    with pytest.raises(ReaderError, match="left in the middle"):
        next(iter(loader))
    dataset.set_epoch(0)
    assert _ids(loader, 4) == _packs(4)
    again = StatefulDataLoader(PackedDataset(packed, **part), **given)
    again.load_state_dict(state)
    assert seen + _ids(again) == _packs(10, epoch=3)
    assert _ids(again) == _packs(10, epoch=4)


@pytest.mark.parametrize(("kind", "workers", "then"), [("pass", 2, 1), ("stream", 1, 2)])
def test_another_number_of_workers_is_refused_in_one_line(opened: Open, kind: str, workers: int, then: int) -> None:
    """Fails when workers go on from what others have given."""
    first = _forked(KINDS[kind](opened()), workers)
    batches = iter(first)
    next(batches)
    again = _forked(KINDS[kind](opened()), then)
    again.load_state_dict(first.state_dict())
    with pytest.raises(ReaderError, match=r"resume with the same num_workers and dp_size, or load a RankBatch.state"):
        next(iter(again))


def test_states_of_others_are_refused(opened: Open) -> None:
    """Fails when a worker's state is loaded where it means other packs: in the main process, at another dp_size, as
    another worker, or a stream's into a pass that is over by then; or a position of all packs in one of several.
    """
    dataset, stream = opened(), PackStream(opened())
    with as_worker(1, 2):
        ours = dataset.state_dict()
        list(itertools.islice(stream, 8))
        past_the_epoch = stream.state_dict()
        with pytest.raises(ReaderError, match="state is of all packs so far, not of worker 1 of 2 at dp_size 1"):
            dataset.load_state_dict({name: ours[name] for name in ("dataset_id", "seed", "tail", "epoch", "position")})
        with pytest.raises(ReaderError, match="of worker 1 of 2 at dp_size 1, not of worker 1 of 2 at dp_size 2"):
            opened(dp_size=2).load_state_dict(ours)
        with pytest.raises(ReaderError, match="state has no steps"):
            dataset.load_state_dict({name: value for name, value in ours.items() if name != "steps"})
        dataset.load_state_dict(past_the_epoch)
        with pytest.raises(ReaderError, match="steps are 8, more than a pass has"):
            next(iter(dataset))
    with as_worker(0, 2), pytest.raises(ReaderError, match="not of worker 0 of 2"):
        opened().load_state_dict(ours)
    with pytest.raises(ReaderError, match="not of all packs so far: resume with the same num_workers"):
        opened().load_state_dict(ours)


@pytest.mark.parametrize("kind", KINDS)
def test_a_position_set_after_the_workers_have_started_is_not_lost(opened: Open, kind: str) -> None:
    """Fails when a loader that has started early, as StatefulDataLoader.state_dict() makes it, goes on from where the
    dataset stood then.
    """
    dataset = opened()
    loader = _forked(KINDS[kind](dataset), 2)
    loader.state_dict()
    dataset.load_state_dict(_at(dataset, 4))
    with pytest.raises(ReaderError, match="set it before the loader starts"):
        list(itertools.islice(loader, 10))
    assert _ids(loader, 6) == _packs(10)[4:]


def _at(dataset: PackedDataset, position: int, epoch: int = 0) -> dict[str, Any]:
    return {"dataset_id": dataset.dataset_id, "seed": 5, "tail": "wrap", "epoch": epoch, "position": position}


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_loop_over_epochs_resumes_inside_of_one(opened: Open, workers: int, persistent: bool) -> None:
    """Fails when set_epoch, which a loop with workers calls before each epoch, drops the position that was loaded."""
    dataset = opened()
    context = {"multiprocessing_context": "fork", "persistent_workers": persistent} if workers else {}
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, **context)
    dataset.load_state_dict(_at(dataset, 7, epoch=3))
    seen = []
    for epoch in (3, 4, 5):
        dataset.set_epoch(epoch)
        seen += _ids(loader)
    assert seen == _packs(30, epoch=3)[7:]
    dataset.load_state_dict(_at(dataset, 7, epoch=3))
    assert _ids(loader) == _packs(10, epoch=3)[7:]
    dataset.set_epoch(3)
    assert _ids(loader) == _packs(10, epoch=3), "what was loaded has been read"


@pytest.mark.parametrize("move", [lambda dataset: dataset.set_epoch(1), lambda dataset: next(iter(dataset))])
def test_an_iteration_ends_where_its_dataset_is_moved(opened: Open, move: Callable[[PackedDataset], object]) -> None:
    """Fails when an iterator goes on from where the dataset is set meanwhile, and leaves packs out at both ends."""
    dataset = opened()
    batches = iter(dataset)
    next(batches)
    move(dataset)
    with pytest.raises(ReaderError, match="open a second PackedDataset"):
        next(batches)


def test_a_dataset_knows_that_its_stream_was_read(opened: Open) -> None:
    """Fails when state_dict() gives the position before a stream, as if none of its batches had been trained on."""
    dataset = opened()
    loader = make_loader(dataset, workers=0, device="cpu")
    batch = next(iter(loader))
    with pytest.raises(ReaderError, match=r"state_dict\(\) does not know"):
        dataset.state_dict()
    dataset.load_state_dict(batch.state)
    assert dataset.state_dict() == batch.state


def test_ranks_that_are_forked_have_positions_of_their_own(opened: Open) -> None:
    """Fails when a rank's process that moves its copy moves those of other ranks, as a loader's workers are moved."""
    dataset = opened()
    batches = iter(dataset)
    seen = [next(batches).pack_id]
    with ProcessPoolExecutor(1, get_context("fork"), initializer=_keep, initargs=(dataset,)) as rank:
        assert rank.submit(_second_epoch).result() == _packs(10, epoch=1)
    assert seen + _ids(batches) == _packs(10)
    assert dataset.state_dict()["epoch"] == 1


_kept: list[PackedDataset] = []


def _keep(dataset: PackedDataset) -> None:
    _kept.append(dataset)


def _second_epoch() -> list[int]:
    [dataset] = _kept
    dataset.set_epoch(1)
    return _ids(DataLoader(dataset, batch_size=None))

"""The endless stream of batches: the same with any number of workers, epoch after epoch, from any position."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_workers import SimulatedWorkers
from streams import packs_of, steps_of
from torch.utils.data import DataLoader

from preshard.schemas.errors import MembersInvalid
from preshard.trainer.data.batch import ON_HOST, RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import PackStream, make_loader
from preshard.trainer.extra.threads import FEEDER, LONGEST_WAIT, let_feeders_end

IdsOnly = Callable[[PackedDataset], PackedDataset]

PART = {"ulysses_degree": 8, "cp_rank": 7}
"""One rank of eight: which packs it takes does not depend on it, and it decodes an eighth of the crops."""


def _seen(batches: Iterator[RankBatch], count: int) -> list[tuple[int, int]]:
    return [(batch.state["epoch"], batch.pack_id) for batch in itertools.islice(batches, count)]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize(("dp_size", "tail"), [(1, "wrap"), (2, "wrap"), (3, "wrap"), (3, "drop")])
def test_epochs_follow_each_other_however_many_share_the_work(
    packed: Path, ids_only: IdsOnly, dp_size: int, tail: Any, workers: int
) -> None:
    """Fails when a worker counts an epoch's steps instead of the stream's: from the second epoch on, the loader's turns
    and the workers' would fall apart wherever an epoch's steps do not divide by the workers.
    """
    part: dict[str, Any] = {"dp_rank": dp_size - 1, "dp_size": dp_size, "tail": tail, "seed": 3}
    dataset = ids_only(PackedDataset(packed, **part))
    expected = steps_of(dataset.n_packs, window=4, **part)[: 25 if dp_size < 3 else 20]
    assert workers < 2 or any(dataset.n_packs // size % workers for size in (1, 2, 3)), "epochs end in mid-turn"
    if not workers:
        assert _seen(iter(make_loader(dataset, workers=0, device="cpu")), len(expected)) == expected
        return
    assert _seen(iter(SimulatedWorkers(PackStream(dataset), workers).give, None), len(expected)) == expected


def test_a_worker_process_gives_the_same_stream(packed: Path, alone: None) -> None:
    """Fails when a spawned worker cannot make its copy, batches come back changed, workers are forked beside a process
    group, or end when their job is asked to.
    """
    dataset = PackedDataset(packed, ulysses_degree=2, cp_rank=1, layout="zigzag", seed=3)
    here = list(itertools.islice(make_loader(dataset, workers=0, device="cpu"), 12))
    loader = make_loader(dataset, workers=1, device="cpu")  # several take turns in test_resume.py, as forks
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    assert isinstance(loader.multiprocessing_context, type(multiprocessing.get_context("spawn")))
    stream = iter(loader)
    together = [next(stream)]  # the worker has started then
    [worker] = stream._workers  # type: ignore[attr-defined]
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(worker.pid, number)  # as torchrun does, when the loop is to save a checkpoint
    together += itertools.islice(stream, 11)
    del stream
    worker.join(60)
    assert worker.exitcode == 0, "a worker that was still sending ends without an abort"
    assert len({batch.state["epoch"] for batch in here}) == 2, "an epoch ends on the way"
    for ours, theirs in zip(here, together, strict=True):
        assert (ours.state, ours.bytes_read, ours.step) == (theirs.state, theirs.bytes_read, theirs.step)
        assert ours.images.equal(theirs.images)
        assert ours.tokens.equal(theirs.tokens)
        assert ours.pool_positions.equal(theirs.pool_positions)


def test_an_ending_worker_waits_for_what_it_sends_and_not_forever() -> None:
    """Fails when the thread that sends batches is left to be ended inside torch's C++, which aborts the process, or
    when a worker whose loader is gone never ends.
    """
    gone = threading.Event()
    sending = threading.Thread(target=time.sleep, args=(0.2,), name=FEEDER, daemon=True)
    stuck = threading.Thread(target=gone.wait, name=FEEDER, daemon=True)
    sending.start()
    let_feeders_end()
    assert not sending.is_alive()
    stuck.start()
    began = time.perf_counter()
    let_feeders_end()
    assert LONGEST_WAIT <= time.perf_counter() - began < LONGEST_WAIT + 30
    gone.set()


@pytest.mark.parametrize("then", [1, 2, 3, 5])
@pytest.mark.parametrize("stop", [1, 3, 5, 6])
def test_a_stream_goes_on_from_a_state_with_any_number_of_ranks(
    packed: Path, ids_only: IdsOnly, stop: int, then: int
) -> None:
    """Fails when a resumed stream repeats or skips a pack, or cannot start where an epoch ended."""
    first = [ids_only(PackedDataset(packed, dp_rank=rank, dp_size=2, seed=3)) for rank in range(2)]
    steps = [list(itertools.islice(PackStream(rank), stop)) for rank in first]
    state = steps[0][-1].state
    after = [ids_only(PackedDataset(packed, dp_rank=rank, dp_size=then, seed=3)) for rank in range(then)]
    for rank in after:
        rank.load_state_dict(state)
    seen = [list(itertools.islice(PackStream(rank), 12 // then)) for rank in after]
    ids = [batch.pack_id for step in zip(*seen, strict=True) for batch in step]
    assert ids == packs_of(10, window=4, seed=3)[2 * stop :][: len(ids)]
    assert 2 * stop + len(ids) > 10, "an epoch ends on the way"


def test_a_stream_leaves_the_dataset_where_it_is(packed: Path) -> None:
    """Fails when a second iteration of the loader continues where the first stopped, with workers or without."""
    dataset = PackedDataset(packed, seed=3, **PART)
    next(iter(dataset))
    loader = make_loader(dataset, workers=0, device="cpu")
    twice = [_seen(iter(loader), 11), _seen(iter(loader), 11)]
    assert twice[0] == twice[1]
    assert twice[0] == steps_of(10, window=4, seed=3)[1:12]
    assert [batch.pack_id for batch in dataset] == [pack_id for _, pack_id in twice[0][:9]]


def test_an_error_in_a_worker_reaches_the_loop_as_itself(copied: Path) -> None:
    """Fails when a damaged shard ends as a bare worker crash, without the shard's name, or below torch's traceback.

    The worker is forked, which takes a hundredth of a spawned one's time; its errors travel the same way.
    """
    shard = copied / "shards/preshard-000000.tar"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(MembersInvalid, match=r"\Ashards/preshard-000000\.tar[^\n]*\Z"):
        list(itertools.islice(DataLoader(PackStream(PackedDataset(copied)), batch_size=None, num_workers=1), 10))


def test_a_batch_moves_to_a_device_whole(packed: Path) -> None:
    """Fails when a tensor stays behind, or a tensor that plans exchanges leaves the CPU."""
    batch = next(iter(PackedDataset(packed)))
    moved = batch.to("meta")
    for name in RankBatch.__dataclass_fields__:
        value, was = getattr(moved, name), getattr(batch, name)
        if isinstance(was, torch.Tensor):
            assert value.device.type == ("cpu" if name in ON_HOST else "meta"), name
            assert value.shape == was.shape
        else:
            assert value is was or name == "columns"


@pytest.mark.gpu
def test_a_batch_is_pinned_for_cuda(packed: Path) -> None:
    """Fails when the loader does not find the batch's own pin_memory."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    batch = next(iter(make_loader(PackedDataset(packed), workers=1, device="cuda")))
    assert batch.images.is_pinned()
    assert batch.to("cuda", non_blocking=True).images.is_cuda

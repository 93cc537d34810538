"""Steps, epochs and positions: which packs a rank takes, and where a stopped job resumes."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streams import packs_of
from torch.utils.data import DataLoader

from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset

IdsOnly = Callable[[PackedDataset], PackedDataset]

PART = {"ulysses_degree": 8, "cp_rank": 7}
"""One rank of eight: which packs it takes does not depend on it, and it decodes an eighth of the crops."""


def _loader(dataset: PackedDataset, workers: int) -> DataLoader[RankBatch]:
    return DataLoader(dataset, batch_size=None, num_workers=workers)


def _order(n_packs: int, epoch: int = 0, seed: int = 5) -> list[int]:
    return packs_of(n_packs, window=4, seed=seed)[epoch * n_packs : (epoch + 1) * n_packs]


@pytest.mark.parametrize("tail", ["wrap", "drop"])
@pytest.mark.parametrize("then", [1, 2, 3, 4])
@pytest.mark.parametrize("at_first", [1, 2, 3, 4])
def test_a_resumed_job_sees_exactly_what_was_not_seen(
    packed: Path, ids_only: IdsOnly, at_first: int, then: int, tail: Any
) -> None:
    """Fails when the position counts steps: with another number of ranks, packs would be skipped or repeated. Also when
    two ranks take the same pack, a step mixes groups, or ranks disagree on the number of steps.
    """
    n_packs = PackedDataset(packed).n_packs
    assert n_packs % 4, "the last step of some size is incomplete"
    order, up = packs_of(n_packs, window=4, seed=5, tail=tail), tail == "wrap"

    def opened(dp_size: int) -> list[PackedDataset]:
        part: dict[str, Any] = {"dp_size": dp_size, "seed": 5, "tail": tail}
        return [ids_only(PackedDataset(packed, dp_rank=rank, **part)) for rank in range(dp_size)]

    def steps(packs: int, dp_size: int) -> int:
        return (packs + (dp_size - 1 if up else 0)) // dp_size

    for stop in range(steps(n_packs, at_first) + 1):
        before = opened(at_first)
        assert {len(rank) for rank in before} == {steps(n_packs, at_first)}
        seen = [batch.pack_id for _, *step in zip(range(stop), *before, strict=False) for batch in step]
        state = json.loads(json.dumps(before[0].state_dict()))
        after = opened(then)
        for rank in after:
            rank.load_state_dict(state)
        assert len(after[0]) == steps(n_packs - state["position"], then)
        seen += [batch.pack_id for step in zip(*after, strict=True) for batch in step]
        assert seen == order[: len(seen)]
        left = (state["epoch"] + 1) * n_packs - len(seen)
        assert -then < left <= 0 if up else 0 <= left < then, "only the last, incomplete step is left out"


@pytest.mark.parametrize("dp_size", [1, 3, 4, 7, 8])
def test_every_pack_comes_as_often_as_any_other(packed: Path, ids_only: IdsOnly, dp_size: int) -> None:
    """Fails when packs at an epoch's end that fill no step are lost or come twice, in a loop over epochs by which
    ranks set them, or in a stream.
    """
    ranks = [ids_only(PackedDataset(packed, dp_rank=rank, dp_size=dp_size, seed=5)) for rank in range(dp_size)]
    order, seen = packs_of(ranks[0].n_packs, window=4, seed=5), []
    for epoch in range(7):
        for rank in ranks:
            rank.set_epoch(epoch)
        seen += [batch.pack_id for step in zip(*ranks, strict=True) for batch in step]
        assert len(seen) // ranks[0].n_packs == epoch + 1
        assert seen == order[: len(seen)]
    times = Counter(seen)
    assert max(times.values()) - min(times[pack] for pack in range(ranks[0].n_packs)) <= 1
    ranks[0].set_epoch(0)
    assert next(iter(ranks[0])).pack_id == order[0], "an epoch that is set back to is that of the stream's start"


def test_a_batchs_state_is_that_of_the_dataset_after_it(packed: Path) -> None:
    """Fails when a state is one step early or late."""
    dataset = PackedDataset(packed, dp_size=2, dp_rank=1, **PART)
    for batch in dataset:
        assert batch.state == dataset.state_dict()
        at = batch.state["epoch"] * dataset.n_packs + batch.state["position"]
        assert at == 2 * (batch.step + 1)


def test_epochs_follow_each_other_and_can_be_set(packed: Path) -> None:
    """Fails when the second iteration repeats the first epoch, or set_epoch keeps the old position."""
    dataset = PackedDataset(packed, seed=5, **PART)
    n_packs = dataset.n_packs
    first, second = [[batch.pack_id for batch in dataset] for _ in range(2)]
    assert (first, second) == (_order(n_packs, 0), _order(n_packs, 1))
    assert first != second
    dataset.set_epoch(1)
    next(iter(dataset))
    dataset.set_epoch(1)
    assert [batch.pack_id for batch in dataset] == second
    assert next(iter(PackedDataset(packed, seed=5, epoch=1, **PART))).pack_id == second[0]


def test_an_abandoned_iteration_continues(packed: Path) -> None:
    """Fails when a loop that stops after K steps and starts again sees the first steps twice."""
    dataset = PackedDataset(packed, seed=5, **PART)
    seen = [batch.pack_id for _, batch in zip(range(3), dataset, strict=False)]
    assert len(dataset) == dataset.n_packs, "the length of a pass stays the same during it"
    seen += [batch.pack_id for batch in dataset]
    assert seen == _order(dataset.n_packs)


def test_workers_give_the_same_batches_in_the_same_order(packed: Path) -> None:
    """Fails when workers repeat or reorder steps, or when a state counts what a worker has read ahead."""
    dataset = PackedDataset(packed, ulysses_degree=2, cp_rank=1, layout="zigzag", seed=5)
    alone = list(_loader(dataset, 0))
    dataset.set_epoch(0)
    loader = _loader(dataset, 2)
    assert len(loader) == len(alone) == dataset.n_packs
    together = list(loader)
    assert [batch.pack_id for batch in together] == [batch.pack_id for batch in alone] == _order(dataset.n_packs)
    assert [batch.bytes_read for batch in together] == [batch.bytes_read for batch in alone]
    assert all(a.tokens.equal(b.tokens) and a.images.equal(b.images) for a, b in zip(alone, together, strict=True))
    dataset.load_state_dict(together[2].state)
    assert [batch.pack_id for batch in _loader(dataset, 2)] == _order(dataset.n_packs)[3:]


def test_a_dataset_pickles_with_its_shards_open(packed: Path) -> None:
    """Fails when an open file or the position is lost on the way to a spawned worker."""
    dataset = PackedDataset(packed, seed=5, **PART)
    next(iter(dataset))
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.state_dict() == dataset.state_dict()
    assert [batch.pack_id for batch in copy] == _order(dataset.n_packs)[1:]

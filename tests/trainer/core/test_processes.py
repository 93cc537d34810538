"""Agreement of processes before a run: where they compute, and what each of them sees."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from preshard.schemas.errors import ConfigError
from preshard.trainer.core.command import end
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.processes import (
    ALLOCATOR,
    STORE_OF_TORCHRUN,
    AnyRank,
    Processes,
    agree_on_device,
    first_difference,
    let_segments_grow,
)
from preshard.trainer.extra.meeting import fresh_name


def _agree(devices: list[str]) -> list[str]:
    """Device of each process if process i is asked to compute on ``devices[i]``."""
    store = dist.HashStore()

    def one(rank: int) -> str:
        try:
            return agree_on_device(store, rank, len(devices), devices[rank]).type
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor(len(devices)) as threads:
        return list(threads.map(one, range(len(devices))))


@pytest.mark.parametrize("given", [None, *ALLOCATOR])
def test_the_allocator_is_the_users(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """Fails when segments have fixed sizes without anyone asking for it, or a user's setting is lost."""
    for name in ALLOCATOR:
        monkeypatch.setenv(name, "")  # so that what is set below does not stay
        monkeypatch.delenv(name)
    if given is not None:
        monkeypatch.setenv(given, "max_split_size_mb:512")
    let_segments_grow()
    found = {name: os.environ[name] for name in ALLOCATOR if name in os.environ}
    assert found == ({ALLOCATOR[0]: "expandable_segments:True"} if given is None else {given: "max_split_size_mb:512"})


def test_processes_that_agree_start() -> None:
    """Fails when processes that all compute on the CPU do not learn it from each other."""
    assert _agree(["cpu", "auto", "cpu"]) == ["cpu"] * 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a process without a GPU")
def test_one_process_without_a_gpu_stops_all_of_them() -> None:
    """Fails when only the process without a device stops: the others would wait for it in NCCL."""
    first, *others = _agree(["cpu", "cuda"])
    assert "this machine has 0 CUDA devices, none for its process 0: give --device cpu" in first
    assert others == [first]


def test_a_gpu_on_some_machines_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when some processes take gloo and others NCCL."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    said = _agree(["auto", "cpu"])
    assert "process 1 has no CUDA device and process 0 has one" in said[0]
    assert said[0].replace("auto", "cpu") == said[1]


def seen_on_a_rank(mesh: Mesh, seen: list[dict[str, str]]) -> str | None:
    """Runs on each rank of the pool."""
    return first_difference(seen[dist.get_rank()])


def test_ranks_that_see_different_checkpoints_stop_with_one_line(gloo_pool: Any) -> None:
    """Fails when ranks go on from different steps: they would abort in gloo or hang in NCCL."""
    same = [{"the newest checkpoint": "step-00000003"}] * 2
    assert gloo_pool.run(seen_on_a_rank, same, ring=2) == [None, None]
    said = gloo_pool.run(seen_on_a_rank, [same[0], {"the newest checkpoint": "none"}], ring=2)
    assert said[0] == said[1]
    assert "the newest checkpoint is step-00000003 on rank 0 and none on rank 1" in said[0]
    said = gloo_pool.run(seen_on_a_rank, [{"--lr": "1e-05"}, {"--lr": "0.0001"}], ring=2)
    assert said == ["--lr is 1e-05 on rank 0 and 0.0001 on rank 1; give all ranks the same options"] * 2


@pytest.mark.parametrize("left", [(0, 1, 2), (1,), ()], ids=["all had met", "one had", "none had"])
def test_processes_that_are_started_again_meet_under_a_new_name(left: tuple[int, ...]) -> None:
    """Fails when a job that torchrun starts again finds addresses of processes that are gone, waits for a key that the
    attempt before did not write, or when some of its processes take the name of that attempt.
    """
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=60))

    def attempt(ranks: tuple[int, ...], world_size: int) -> set[str]:
        with ThreadPoolExecutor(len(ranks)) as threads:
            return set(threads.map(lambda rank: fresh_name(store, rank, world_size), ranks))

    first = attempt((0, 1, 2), 3)
    for rank in {0, 1, 2} - set(left):  # as if it had been killed before
        store.delete_key(f"seen/{rank}")
    again = attempt((2, 0, 1), 3)
    fewer = attempt((0, 1), 2)
    assert len(first) == len(again) == len(fewer) == 1
    assert len(first | again | fewer) == 3


def asked_on_a_rank(mesh: Mesh, says: list[list[bool]]) -> list[bool]:
    """Runs on each rank of the pool."""
    asked = AnyRank()
    return [asked(mine) for mine in says[dist.get_rank()]]


def test_all_ranks_learn_in_the_same_round_that_one_was_asked(gloo_pool: Any) -> None:
    """Fails when ranks leave a loop of collectives in different rounds, or never."""
    says = [[False] * 4, [False, True, False, False]]
    assert gloo_pool.run(asked_on_a_rank, says, ring=2) == [[False, False, True, False]] * 2


class _Store:
    """A store for two processes, of which the second fails when the first has looked twice whether it has."""

    def __init__(self) -> None:
        self.looked, self.second_speaks = 0, True
        self._store = dist.HashStore()

    def add(self, key: str, amount: int) -> int:
        self.looked += amount == 0
        if self.looked == 2:
            self.second_speaks = _process(self, 1).fails_first()
        return self._store.add(key, amount)


def _process(store: _Store, rank: int) -> Processes:
    return Processes(rank=rank, world_size=2, device=torch.device("cpu"), store=cast(dist.Store, store))


def test_two_that_fail_at_once_say_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the process that keeps the store ends before another one that fails too could ask who was first."""
    monkeypatch.delenv(STORE_OF_TORCHRUN, raising=False)
    monkeypatch.setattr("preshard.trainer.core.processes.STORE_STAYS_SECONDS", 3600.0)
    store = _Store()
    assert _process(store, 0).fails_first()
    _process(store, 0).leave_store()
    assert not store.second_speaks
    assert store.looked == 2  # and it ended then


@pytest.mark.parametrize(("rank", "of_torchrun"), [(1, "False"), (0, "True")])
def test_a_process_without_the_store_ends_at_once(rank: int, of_torchrun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when every rank that fails waits for the others, who wait for it."""
    monkeypatch.setenv(STORE_OF_TORCHRUN, of_torchrun)
    store = _Store()
    _process(store, rank).leave_store()
    assert store.looked == 0


def test_a_rank_that_a_signal_ended_is_no_riddle(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Fails when a rank that was asked to stop takes the end of another one for a lack of memory."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    lost = RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:29500")
    for asked in (False, True):
        end(_process(_Store(), 1), lost, asked=asked)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("trainer: rank 1: another rank died without an error message; if it ran out of memory")
    assert second.startswith("trainer: rank 1: stopped by a signal; another rank ended before a checkpoint was saved")
    assert ended == [1, 1]

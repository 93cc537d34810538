"""The processes of a job: how they meet, where each computes, and how they agree that all can start."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import several
from preshard.trainer.extras import load_extra

STORE_STAYS_SECONDS = 1.0
"""Seconds for which a store is kept for others that fail together with its process: ranks that meet the same damage do
so in the same step. Those that fail because this one is gone come later, and are not waited for."""

STORE_OF_TORCHRUN = "TORCHELASTIC_USE_AGENT_STORE"
"""Variable that torchrun sets to ``True`` where it keeps the store itself; else the first process does."""


ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables by which a user sets torch's allocator."""


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process and its place among those of the job.

    Attributes:
        rank: this process.
        world_size: how many there are.
        device: where it computes.
        store: what all of them read and write, without waiting for each other.
    """

    rank: int
    world_size: int
    device: torch.device
    store: dist.Store

    def fails_first(self) -> bool:
        """Whether no other process has failed before this one.

        Others fail because this one does: their next exchange with it breaks off. A store that is gone went with the
        process that kept it, whose own words may be lost.
        """
        try:
            return self.store.add("failed", 1) == 1
        except RuntimeError:
            return True

    def leave_store(self) -> None:
        """Stays, where this process keeps the store, until all others have failed too, or for a moment.

        Where it fails together with another one, that one would find the store gone, and say what has been said.
        """
        if self.rank != 0 or os.environ.get(STORE_OF_TORCHRUN) == "True":
            return
        end = time.monotonic() + STORE_STAYS_SECONDS
        while self.store.add("failed", 0) < self.world_size and time.monotonic() < end:
            time.sleep(0.01)


def start_processes(device: str) -> Processes:
    """Joins the processes that torchrun started; without torchrun there is only this one.

    A job on CUDA has both backends: tensors on the CPU, such as lengths and messages, travel by gloo. Processes tell
    each other where they compute before they choose: one without a GPU would wait in gloo for others that wait in NCCL.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        ConfigError: a process should compute on CUDA and has no device for it, or only some have one. Every process
            raises it, and they have met all the same: :func:`joined` says which this is. Or they cannot meet.
    """
    store, rank, world_size = load_extra("meeting").meet()
    try:
        place = agree_on_device(store, rank, world_size, device)
    except ConfigError:
        dist.init_process_group("gloo", store=dist.PrefixStore("job", store), rank=rank, world_size=world_size)
        raise
    on_cuda = place.type == "cuda"
    if on_cuda:
        let_segments_grow()
        torch.cuda.set_device(place)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        store=dist.PrefixStore("job", store),
        rank=rank,
        world_size=world_size,
        device_id=place if on_cuda else None,
    )
    return Processes(rank=rank, world_size=world_size, device=place, store=store)


def let_segments_grow() -> None:
    """Asks torch's allocator on CUDA for segments that grow, unless the user has set it: packs differ in their images,
    and memory between segments of fixed sizes is lost. It has an effect until the first tensor is there.
    """
    if not any(name in os.environ for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"


def joined() -> Processes:
    """This process among those that have met, where they compute nothing because something does not fit; alone, if they
    cannot meet.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return Processes(
        rank=dist.get_rank(), world_size=dist.get_world_size(), device=torch.device("cpu"), store=dist.HashStore()
    )


def agree_on_device(store: dist.Store, rank: int, world_size: int, device: str) -> torch.device:
    """The device of this process, once every other one has said the same kind of device. All processes call this.

    Raises:
        ConfigError: a process has no device of the kind asked for, or they would compute on different kinds. All raise
            the same.
    """
    place, problem = torch.device("cpu"), ""
    try:
        place = _place(device)
    except ConfigError as error:
        problem = str(error)
    store.set(f"device/{rank}", f"{place.type}/{problem}")
    said = [store.get(f"device/{other}").decode().partition("/") for other in range(world_size)]
    problems = [problem for _, _, problem in said if problem]
    if problems:
        raise ConfigError(problems[0])
    types = [kind for kind, _, _ in said]
    if len(set(types)) > 1:
        raise ConfigError(
            f"--device is {device}; process {types.index('cpu')} has no CUDA device and process {types.index('cuda')} "
            "has one: start processes only where there are devices, or give --device cpu"
        )
    return place


def _place(device: str) -> torch.device:
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if device == "cpu" or (device == "auto" and not count):
        return torch.device("cpu")
    if local_rank >= count:
        fewer = f"start at most {several(count, 'process')} per machine, or " if count else ""
        raise ConfigError(
            f"--device is {device}, and this machine has {several(count, 'CUDA device')}, none for its process "
            f"{local_rank}: {fewer}give --device cpu"
        )
    return torch.device("cuda", local_rank)


class StoppedError(Exception):
    """A rank was asked to stop, and all have agreed to."""


class AnyRank:
    """Whether any rank has said yes. All ranks ask equally often, and learn of an answer when they ask the next time.

    So no rank waits for another one that is less than a round behind, nor for its device.
    """

    def __init__(self) -> None:
        self._said = torch.zeros(1, dtype=torch.int32)
        self._answer: Any = None

    def __call__(self, mine: bool) -> bool:
        if self._answer is not None:
            self._answer.wait()
        found = bool(self._said.item())
        self._said = torch.tensor([mine], dtype=torch.int32)
        self._answer = dist.all_reduce(self._said, op=dist.ReduceOp.MAX, async_op=True)
        return found


def first_problem(problem: str | None) -> str | None:
    """The problem of the lowest rank that has one, returned on every rank. All ranks call this at the same place.

    A rank that stopped by itself would leave the others waiting for it in their first collective.
    """
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    return next((found for found in problems if found is not None), None)


def first_difference(seen: dict[str, str]) -> str | None:
    """First difference in what the processes see, in one line, on every rank. All ranks call this at the same place.

    Processes that start from different checkpoints, or read different datasets of one name, would run different
    collectives.

    Args:
        seen: by its name, what every rank must see alike.
    """
    ranks: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, seen)
    for name, of_first in ranks[0].items():
        for rank, other in enumerate(ranks):
            if other[name] != of_first:
                files = "all ranks must see the same files: give paths of a filesystem that they share"
                remedy = "give all ranks the same options" if name.startswith("--") else files
                return f"{name} is {of_first} on rank 0 and {other[name]} on rank {rank}; {remedy}"
    return None

"""The processes of a job: how they meet, where each computes, and how they agree that all can start."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from schemas.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process and its place among those of the job."""

    rank: int
    world_size: int
    device: torch.device


def start_processes(device: str) -> Processes:
    """Joins the processes that torchrun started; without torchrun there is only this one.

    A job on CUDA has both backends: tensors on the CPU, such as lengths and messages, travel by gloo.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        ConfigError: it should compute on CUDA, and there is no device for it.
    """
    place = _place(device)
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if "RANK" in os.environ:
        dist.init_process_group(backend, device_id=place if place.type == "cuda" else None)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return Processes(rank=dist.get_rank(), world_size=dist.get_world_size(), device=place)


def _place(device: str) -> torch.device:
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if device == "cpu" or (device == "auto" and not count):
        return torch.device("cpu")
    if local_rank >= count:
        raise ConfigError(
            f"--device is {device}; process {local_rank} of this machine has no CUDA device of its own, as there are "
            f"only {count}: start at most {count} processes per machine, or give --device cpu"
        )
    return torch.device("cuda", local_rank)


def first_problem(problem: str | None) -> str | None:
    """The problem of the lowest rank that has one, returned on every rank. All ranks call this at the same place.

    A rank that stopped by itself would leave the others waiting for it in their first collective.
    """
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    return next((found for found in problems if found is not None), None)

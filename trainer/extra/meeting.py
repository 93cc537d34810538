"""Meeting of a job's processes: by torchrun's variables, or alone where nobody has started others."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from uuid import uuid4

import torch.distributed as dist

from preshard.schemas.errors import ConfigError
from preshard.trainer.models.load import one_line

OTHERS = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables in which torchrun, srun, mpirun and mpiexec count the processes that they start."""

NUMBERS = ("RANK", "WORLD_SIZE", "MASTER_PORT")
"""Variables that are numbers."""

ASK_AGAIN_SECONDS = 0.05
"""Seconds until a process that waits for others on the store asks again."""


def meet(environment: Mapping[str, str] = os.environ) -> tuple[dist.Store, int, int]:
    """A store that all processes of this attempt share and no earlier one has used, this one's rank, and how many there
    are. All processes call this.

    Raises:
        ConfigError: other processes were started, and do not know of each other, or this one cannot reach them.
    """
    if "RANK" not in environment:
        check_alone(environment)
        return dist.HashStore(), 0, 1
    check_variables(environment)
    try:
        shared, rank, world_size = next(dist.rendezvous("env://"))
        return dist.PrefixStore(fresh_name(shared, rank, world_size), shared), rank, world_size
    except (RuntimeError, ValueError) as error:
        where = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
        if "EADDRINUSE" in str(error):
            raise ConfigError(
                f"MASTER_PORT is {environment['MASTER_PORT']}, which another program listens to: take another, or on a "
                "single machine start with torchrun --standalone"
            ) from None
        raise ConfigError(
            f"process {environment['RANK']} of {environment['WORLD_SIZE']} cannot meet the others at {where} "
            f"({one_line(error)}): start all of them, with a MASTER_ADDR that each machine reaches"
        ) from None


def join_alone() -> None:
    """Makes the default process group of a program that was started without torchrun; others are left to torch, which
    chooses their devices, too.

    Raises:
        ConfigError: see :func:`check_alone`.
    """
    if "RANK" not in os.environ:
        check_alone(os.environ)
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)


def check_alone(environment: Mapping[str, str]) -> None:
    """Checks that a process which was given no rank was started alone.

    Raises:
        ConfigError: it was not: each would train by itself, and write over what the others write.
    """
    for name in OTHERS:
        count = environment.get(name, "")
        if count.isdecimal() and int(count) > 1:
            raise ConfigError(
                f"{name} is {count} and RANK is not set, so each of {count} processes would train alone: start one "
                "torchrun per machine, or set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each"
            )


def check_variables(environment: Mapping[str, str]) -> None:
    """Checks what torchrun sets for each process, where ``RANK`` is set.

    Raises:
        ConfigError: one is missing or not a number, or the rank is not below the number of processes.
    """
    remedy = "start with torchrun, or unset RANK to train with one process"
    if missing := [name for name in (*NUMBERS, "MASTER_ADDR") if name not in environment]:
        raise ConfigError(f"RANK is set, and {' and '.join(missing)} not: {remedy}")
    if wrong := [name for name in NUMBERS if not environment[name].isdecimal()]:
        raise ConfigError(f"{wrong[0]} is {environment[wrong[0]]!r}, not a number: {remedy}")
    if int(environment["RANK"]) >= int(environment["WORLD_SIZE"]):
        raise ConfigError(
            f"RANK is {environment['RANK']} and WORLD_SIZE {environment['WORLD_SIZE']}; ranks count from 0: {remedy}"
        )


def fresh_name(store: dist.Store, rank: int, world_size: int) -> str:
    """A name that all processes of this attempt agree on, and no earlier one has had. All of them call this.

    torchrun starts a failed job again on a store with the keys of the attempt before, among them addresses of processes
    that are gone. Its count of restarts does not tell attempts apart: agents of several machines count for themselves,
    and one that only follows another's restart does not count it.

    A process is sure once its own fresh name is in the list that the first process makes of all names. The first one
    makes it again until all are, as it may find names of the attempt before; its own is then that of the attempt.
    """
    own = uuid4().hex
    store.set(f"name/{rank}", own)
    everyone = range(world_size)
    while True:
        if rank == 0:
            store.set("names", " ".join(store.get(f"name/{other}").decode() for other in everyone))
        names = store.get("names").decode().split()
        if len(names) == world_size and names[rank] == own:
            store.set(f"seen/{rank}", names[0])
            seen = [f"seen/{other}" for other in everyone]
            if rank or (store.check(seen) and all(store.get(each).decode() == own for each in seen)):
                return names[0]
        time.sleep(ASK_AGAIN_SECONDS)

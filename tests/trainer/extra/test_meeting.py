"""Processes that cannot meet end with one line, and none trains alone beside others."""

from __future__ import annotations

import socket

import pytest
import torch.distributed as dist

from preshard.schemas.errors import ConfigError
from preshard.trainer.extra.meeting import join_alone, meet

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}

REFUSED = {
    "a rank alone": (
        {"RANK": "0"},
        "RANK is set, and WORLD_SIZE and MASTER_PORT and MASTER_ADDR not: start with torchrun",
    ),
    "a word": ({**ALONE, "RANK": "first", "MASTER_PORT": "1"}, "RANK is 'first', not a number: start with torchrun"),
    "beyond": ({**ALONE, "RANK": "1", "MASTER_PORT": "1"}, "RANK is 1 and WORLD_SIZE 1; ranks count from 0: start"),
    "srun": ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}, "so each of 4 processes would train alone: start one"),
    "mpirun": ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE is 2 and RANK is not set, so each of 2 processes"),
    "others": ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2 and RANK is not set, so each of 2 processes would train alone"),
}


@pytest.mark.parametrize(("environment", "said"), REFUSED.values(), ids=REFUSED)
def test_variables_of_no_launcher_are_refused(environment: dict[str, str], said: str) -> None:
    """Fails when processes of another launcher each train by themselves, or a missing variable ends in a traceback."""
    with pytest.raises(ConfigError) as raised:
        meet(environment)
    assert said in str(raised.value)


def test_a_process_alone_needs_no_variables() -> None:
    """Fails when a job of one task, or the script that starts others, is refused."""
    store, rank, world_size = meet({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4", "OMPI_COMM_WORLD_SIZE": "1"})
    assert isinstance(store, dist.HashStore)
    assert (rank, world_size) == (0, 1)


def test_a_port_that_is_taken_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a second job on a machine ends in torch's traceback."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        environment = {**ALONE, "MASTER_PORT": port}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match=f"MASTER_PORT is {port}, which another program listens to: take another"):
            meet(environment)


def test_a_program_without_torchrun_has_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when trying a loop of one's own on one process needs torchrun, or tasks of srun each get a mesh."""
    started: list[dict[str, object]] = []
    monkeypatch.setattr(dist, "init_process_group", lambda **given: started.append(given))
    monkeypatch.delenv("RANK", raising=False)
    join_alone()
    assert [(each["rank"], each["world_size"]) for each in started] == [(0, 1)]
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(ConfigError, match="each of 2 processes would train alone"):
        join_alone()
    monkeypatch.setenv("RANK", "0")
    join_alone()
    assert len(started) == 1

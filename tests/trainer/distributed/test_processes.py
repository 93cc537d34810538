"""How processes agree before a run: where they compute, and what each of them sees."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from schemas.errors import ConfigError
from trainer.distributed.mesh import Mesh
from trainer.distributed.processes import agree_on_device, first_difference


def _agree(devices: list[str]) -> list[str]:
    """What each process gets if process i is asked to compute on ``devices[i]``."""
    store = dist.HashStore()

    def one(rank: int) -> str:
        try:
            return agree_on_device(store, rank, len(devices), devices[rank]).type
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor(len(devices)) as threads:
        return list(threads.map(one, range(len(devices))))


def test_processes_that_agree_start() -> None:
    """Fails when processes that all compute on the CPU do not learn it from each other."""
    assert _agree(["cpu", "auto", "cpu"]) == ["cpu"] * 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a process without a GPU")
def test_one_process_without_a_gpu_stops_all_of_them() -> None:
    """Fails when only the process without a device stops: the others would wait for it in NCCL."""
    first, *others = _agree(["cpu", "cuda"])
    assert "process 0 of this machine has no CUDA device of its own" in first
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

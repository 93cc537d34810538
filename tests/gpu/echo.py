# ruff: noqa: ARG002 (torch's interface)
"""A process group in which one process is any rank of many: what others would send is what it sent itself.

Sizes, memory, kernels and copies are real, numbers are finite and of the right scale, and mean nothing. What arrives is
there at once, on the current stream, as NCCL's would be; messages take no time but that of a copy on the device.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore


class _Done(dist.Work):
    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Echo(dist.ProcessGroup):
    """Stand-in as described above, for CPU and CUDA tensors alike."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._place = rank, size
        self._letters: list[Tensor] = []

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        return "echo"

    @property
    def pg_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    @property
    def group_name(self) -> str:
        return self.pg_name

    def rank(self) -> int:
        return self._place[0]

    def size(self) -> int:
        return self._place[1]

    @torch.no_grad()
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> _Done:
        for each in tensors:
            if opts is None or opts.reduceOp == dist.ReduceOp.SUM:
                each.mul_(self.size())
        return _Done()

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> _Done:
        return _Done()

    @torch.no_grad()
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> _Done:
        for into, given in zip(outputs, inputs, strict=True):
            for each in into:
                each.copy_(given)
        return _Done()

    @torch.no_grad()
    def _allgather_base(self, output: Tensor, given: Tensor, opts: Any = None) -> _Done:
        output.view(self.size(), -1).copy_(given.reshape(1, -1).expand(self.size(), -1))
        return _Done()

    @torch.no_grad()
    def _reduce_scatter_base(self, output: Tensor, given: Tensor, opts: Any = None) -> _Done:
        torch.sum(given.view(self.size(), -1), dim=0, out=output.view(-1))  # reads all of it, as a reduction would
        return _Done()

    @torch.no_grad()
    def alltoall_base(self, output: Tensor, given: Tensor, out_sizes: Any, in_sizes: Any, opts: Any = None) -> _Done:
        into, sent = output.view(-1), given.reshape(-1)
        if not len(sent):
            into.zero_()
            return _Done()
        for part in into.split(len(sent)):
            part.copy_(sent[: len(part)])
        return _Done()

    # their names from torch 2.13 on
    all_gather_single, reduce_scatter_single, all_to_all_single = _allgather_base, _reduce_scatter_base, alltoall_base

    def barrier(self, opts: Any = None) -> _Done:
        return _Done()

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> _Done:
        self._letters.append(tensors[0])
        return _Done()

    @torch.no_grad()
    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> _Done:
        tensors[0].copy_(self._letters.pop(0)) if self._letters else tensors[0].zero_()
        return _Done()


def start_echo(rank: int, world: int) -> None:
    """Makes it the default group of this process."""
    if not hasattr(dist.Backend, "ECHO"):
        dist.Backend.register_backend(
            "echo", lambda _store, rank, size, _timeout: Echo(rank, size), devices=["cpu", "cuda"]
        )
    dist.init_process_group("echo", store=FakeStore(), rank=rank, world_size=world)

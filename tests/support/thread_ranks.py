"""Ranks as threads of one process: the collectives that attention calls, over memory that the threads share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from preshard.trainer.attention.context_parallel import ALL_GATHER, ContextParallel

PATIENCE = 600
"""Seconds that a rank waits for the others. One that fails ends all at once, so this is for a deadlock alone."""


class ThreadGroup:
    """Stands for a process group; each thread knows by itself which of its ranks it is."""

    def __init__(self, size: int) -> None:
        self._barrier, self._given = threading.Barrier(size), [None] * size
        self._me = threading.local()

    def join(self, rank: int) -> None:
        self._me.rank = rank

    def leave(self) -> None:
        """Ends the waiting of all ranks."""
        self._barrier.abort()

    @property
    def rank(self) -> int:
        rank: int = self._me.rank
        return rank

    def exchange(self, given: Any) -> list[Any]:
        """Exchanges the values of all ranks, by rank."""
        self._given[self.rank] = given
        self._barrier.wait(PATIENCE)
        found = list(self._given)
        self._barrier.wait(PATIENCE)
        return found


def run_ranks(ulysses: int, ring: int, function: Callable[[ContextParallel], Any]) -> list[Any]:
    """Results of a function on each rank of a mesh, by ``cp_rank``; the first error of any rank is raised."""
    whole = ThreadGroup(ulysses * ring)
    rings, rows = [ThreadGroup(ring) for _ in range(ulysses)], [ThreadGroup(ulysses) for _ in range(ring)]
    groups: Any = [whole, *rings, *rows]

    def on_rank(rank: int) -> Any:
        r, u = divmod(rank, ulysses)
        for group, place in ((whole, rank), (rings[u], r), (rows[r], u)):
            group.join(place)
        of_one: Any = [group if size > 1 else None for group, size in ((rings[u], ring), (rows[r], ulysses))]
        together: Any = whole if ulysses * ring > 1 else None
        cp = ContextParallel(
            ulysses_degree=ulysses, ring_degree=ring, ulysses_rank=u, ring_rank=r,
            ring_group=of_one[0], ulysses_group=of_one[1], cp_group=together,
        )  # fmt: skip
        try:
            return function(cp)
        except BaseException:
            for group in groups:
                group.leave()
            raise

    with _collectives(), ThreadPoolExecutor(ulysses * ring) as pool:
        futures = [pool.submit(on_rank, rank) for rank in range(ulysses * ring)]
        errors = [future.exception() for future in futures]
    own = [error for error in errors if error is not None and not isinstance(error, threading.BrokenBarrierError)]
    for error in (*own, *filter(None, errors)):
        raise error
    return [future.result() for future in futures]


def _collectives() -> Any:
    return mock.patch.multiple(
        dist,
        all_to_all_single=_all_to_all,
        batch_isend_irecv=_send_and_receive,
        **{ALL_GATHER: _all_gather},
        P2POp=lambda op, tensor, group, group_peer, tag: SimpleNamespace(
            sends=op is dist.isend, tensor=tensor, group=group, key=(group_peer, tag)
        ),
    )


class Work:
    """A message that arrives when it is waited for: whoever reads it before finds no number."""

    def __init__(self, received: Tensor, found: Tensor) -> None:
        self._received, self._found = received, found
        with torch.no_grad():
            received.fill_(torch.nan)

    def wait(self) -> None:
        with torch.no_grad():
            self._received.copy_(self._found)


def _all_to_all(
    received: Tensor,
    sent: Tensor,
    received_sizes: Sequence[int] | None = None,
    sent_sizes: Sequence[int] | None = None,
    *,
    group: ThreadGroup,
    async_op: bool = False,
) -> Any:
    parts = group.exchange(sent.detach().clone())
    size = len(parts)
    sizes = group.exchange([len(sent) // size] * size if sent_sizes is None else list(sent_sizes))
    found = [part.split(each)[group.rank] for part, each in zip(parts, sizes, strict=True)]
    assert received_sizes is None or [len(part) for part in found] == list(received_sizes)
    assert sum(map(len, found)) == len(received), "torch would refuse it"
    work = Work(received, torch.cat(found))
    return work if async_op else work.wait()


def _all_gather(received: Tensor, sent: Tensor, *, group: ThreadGroup, async_op: bool = False) -> Any:
    work = Work(received, torch.cat(group.exchange(sent.detach().clone())))
    return work if async_op else work.wait()


def _send_and_receive(ops: Sequence[Any]) -> list[Work]:
    """The works of what is received: what is sent has been copied, so nobody needs to wait for it."""
    group: ThreadGroup = ops[0].group
    sent = group.exchange({op.key: op.tensor.detach().clone() for op in ops if op.sends})
    return [Work(op.tensor, sent[op.key[0]][group.rank, op.key[1]]) for op in ops if not op.sends]

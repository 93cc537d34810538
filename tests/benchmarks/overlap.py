"""Prints what overlapping the exchanges of Ulysses hides, on two processes whose link is given a speed.

    python tests/benchmarks/overlap.py [--tokens 16384] [--rounds 5]

On one machine gloo copies memory, which takes the processors that the kernel wants. So each message is held back until
a link of the given speed would have brought it, one message after the other, while the sender goes on. The speeds are
those at which the messages of a forward and backward take a quarter of the kernel's time, as long, and twice as long.
One thread per process, float32, 8 query heads, 4 key heads, head_dim 64, documents of 512 tokens; medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from machine import hardware

from preshard.schemas.layout import TokenLayout
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention import Attend, MaskTensors, bind
from preshard.trainer.distributed.mesh import build_mesh

RANKS, HEADS, KV_HEADS, HEAD_DIM, DOCUMENT = 2, 8, 4, 64, 512


class Link:
    """Brings messages one after the other at a speed, in bytes per second."""

    def __init__(self, speed: float) -> None:
        self.speed, self.free, self.bytes = speed, 0.0, 0
        self._send = dist.all_to_all_single

    def __call__(self, out: Any, data: Any, group: Any = None, async_op: bool = False) -> Any:
        sent = data.nbytes * (RANKS - 1) // RANKS
        self.bytes += sent
        self.free = max(self.free, time.perf_counter()) + sent / self.speed
        message = Message(self._send(out, data, group=group, async_op=True), self.free)
        return message if async_op else message.wait()


class Message:
    """A transfer that ends no earlier than its link would have ended it."""

    def __init__(self, work: Any, arrives: float) -> None:
        self._work, self._arrives = work, arrives

    def wait(self) -> None:
        self._work.wait()
        time.sleep(max(0.0, self._arrives - time.perf_counter()))


def seconds(attend: Attend, tokens: int, link: Link, rounds: int) -> float:
    """The median time of a forward and backward on the slower rank."""
    rng = torch.Generator().manual_seed(0)
    sizes = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    *inputs, dout = (torch.randn(n, tokens, HEAD_DIM, generator=rng, requires_grad=i < 3) for i, n in enumerate(sizes))
    took = []
    for _ in range(rounds):
        dist.barrier()
        began = time.perf_counter()
        with mock.patch.object(dist, "all_to_all_single", link):
            torch.autograd.grad(attend(*inputs), inputs, dout)
        slower = torch.tensor(time.perf_counter() - began)
        dist.all_reduce(slower, dist.ReduceOp.MAX)
        took.append(float(slower))
    return statistics.median(took)


def on_a_rank(rank: int, store: str, tokens: int, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    cp = build_mesh("cpu", dp_replicate=1, dp_shard=1, ring_degree=1, ulysses_degree=RANKS).cp
    zero, doc = np.zeros(tokens, np.int32), (np.arange(tokens) // DOCUMENT).astype(np.int32)
    mask = MaskTensors.from_arrays(MaskArrays(doc_ids=doc, branch_ids=zero, group_ids=zero - 1))
    runs, needs = np.array([[0, 0, tokens]], np.int32), np.ones((1, tokens // 128), bool)
    layout = TokenLayout(scheme="contiguous", ring_degree=1, block_size=128, runs=runs, needs=needs)
    kinds = {overlap: bind("ulysses", layout, mask, cp, overlap=overlap) for overlap in (False, True)}
    free = Link(float("inf"))
    alone = {overlap: seconds(attend, tokens // RANKS, free, rounds) for overlap, attend in kinds.items()}
    moved = free.bytes / rounds / len(kinds)
    if rank == 0:
        print(f"{moved / 2**20:.1f} MiB sent by each rank; {alone[False]:.3f} s with a link that takes no time\n")
        print("| messages / kernel | plain s | overlapped s | hidden |\n|---|---|---|---|")
        print(f"| 0 | {alone[False]:.3f} | {alone[True]:.3f} | |")
    for share in (0.25, 1.0, 2.0):
        asked = torch.tensor(share * alone[False])
        dist.broadcast(asked, 0)
        plain, overlapped = (seconds(kinds[o], tokens // RANKS, Link(moved / float(asked)), rounds) for o in kinds)
        if rank == 0:
            hidden = (plain - overlapped) / float(asked)
            print(f"| {share:g} | {plain:.3f} | {overlapped:.3f} | {hidden:.0%} |")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print(f"{hardware()}, torch {torch.__version__}, {RANKS} processes, {asked.tokens} tokens")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(on_a_rank, args=(f"{folder}/store", asked.tokens, asked.rounds), nprocs=RANKS)


if __name__ == "__main__":
    main()

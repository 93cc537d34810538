"""Requests of a node's ranks to an object store, with a cache and without, and what faults of the store cost.

    python tests/benchmarks/stores.py [--dataset DATASET] [--cp-size 8] [--packs 6] [--epochs 2] [--steps 200]

Without ``--dataset`` it packs clips as ``reading.py`` does. An S3 server on this machine counts requests and bytes of
shards. In the second part one rank reads ``--steps`` packs, each used for ``--step`` seconds, from a store that answers
after 30 ms; then one answer in twenty about a shard is a fault, each kind in its turn: 503, a connection that is reset
or ends, a stall of two seconds, a drip of 4 kB in 0.1 s, half of the bytes, one wrong byte. Seconds of a batch are
those that the loop waited for it, and the step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "s3"), str(Path(__file__).parents[2])]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from machine import hardware  # noqa: E402
from range_server import FAULTS, served_ranges  # noqa: E402
from reading import write_source  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402
from preshard.packer_service.runtime.progress import ConsoleProgress  # noqa: E402
from preshard.trainer.data.dataset import PackedDataset  # noqa: E402

LATENCY = 0.03
EVERY = 20


def node(dataset: Path, cp_size: int, epochs: int) -> None:
    """Bytes and requests of all ranks of a pack, epoch by epoch."""
    print(f"\n{cp_size} ranks of one node, whole epochs; of shards alone\n")
    print("| | requests | MB |\n|---|---|---|")
    for cached in (False, True):
        with tempfile.TemporaryDirectory() as folder, served_ranges(dataset) as server:
            cache: Any = {"cache_dir": folder, "cache_limit": "64GB"} if cached else {}
            for epoch in range(epochs):
                server.take()
                ranks = [
                    PackedDataset(server.uri, ulysses_degree=cp_size, cp_rank=rank, epoch=epoch, **cache)
                    for rank in range(cp_size)
                ]
                for _ in zip(*ranks, strict=True):
                    pass
                requests = sum(count for name, count in server.requests.items() if name.startswith("shards/"))
                sent = sum(count for name, count in server.sent.items() if name.startswith("shards/"))
                with_cache = "cache_dir" if cached else "no cache"
                print(f"| {with_cache}, epoch {epoch + 1} | {requests} | {sent / 1e6:.1f} |")


class Faulty:
    """One answer in so many about a shard is a fault."""

    def __init__(self) -> None:
        self._kinds, self._asked, self._lock = cycle(FAULTS), 0, threading.Lock()
        self.planted = 0

    def __call__(self, method: str, name: str) -> str:
        if method != "GET" or not name.startswith("shards/"):
            return ""
        with self._lock:
            self._asked += 1
            if self._asked % EVERY:
                return ""
            self.planted += 1
            return next(self._kinds)


def faults(dataset: Path, cp_size: int, steps: int, step: float) -> None:
    """Times of batches without faults and with them."""
    local = {batch.pack_id: batch for batch in PackedDataset(dataset, ulysses_degree=cp_size, cp_rank=cp_size // 2)}
    print(f"\nrank {cp_size // 2} of {cp_size}, {steps} packs, each used for {step:g} s\n")
    print("| packs ahead | faults | retries | median of a batch, s | 99th percentile | packs unequal |")
    print("|---|---|---|---|---|---|")
    for ahead in (0, 2, 4):
        for plan in (None, Faulty()):
            delayed: Any = {"before": lambda _: time.sleep(LATENCY), "fault": plan or (lambda *_: "")}
            with served_ranges(dataset, **delayed) as server:
                reader = PackedDataset(server.uri, ulysses_degree=cp_size, cp_rank=cp_size // 2, ahead=ahead)
                times, retries, unequal, began = list[float](), 0, 0, time.perf_counter()
                for batch in islice(reader.stream(), steps):
                    time.sleep(step)
                    times.append(time.perf_counter() - began)
                    retries += batch.reads["retries"]
                    tensors, right = batch.tensors, local[batch.pack_id].tensors
                    unequal += any(not torch.equal(tensors[name], right[name]) for name in right)
                    began = time.perf_counter()
            middle, last = np.percentile(times[1:], (50, 99))
            planted = plan.planted if plan else 0
            print(f"| {ahead} | {planted} | {retries} | {middle:.3f} | {last:.3f} | {unequal} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--cp-size", type=int, default=8)
    parser.add_argument("--packs", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step", type=float, default=0.25)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(hardware())
    with tempfile.TemporaryDirectory() as folder:
        dataset = given.dataset
        if dataset is None:
            dataset, source = Path(folder) / "dataset", write_source(Path(folder), given.packs)
            pack([str(source)], str(dataset), load_config(), PlainExecutor(), ConsoleProgress())
        node(dataset, given.cp_size, given.epochs)
        faults(dataset, given.cp_size, given.steps, given.step)


if __name__ == "__main__":
    main()

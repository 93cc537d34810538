"""What Ray's driver holds, and how long the first result takes, when a run has very many tasks.

    python tests/benchmarks/feeding.py [--items 1000 100000] [--results 2000]

Trivial tasks, on two CPUs: the tasks cost nothing, so what is left is the cost of giving them to Ray. The run is left
after some results, since all of them would only take longer. Each number of items in a process of its own; memory is
what the driver has at its peak above what it has when Ray is up, and what lies in Ray's store at the first result.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import hardware  # noqa: E402


class Items(Sequence[tuple[str, int]]):
    """A sequence whose members are made when they are asked for, as the job's are."""

    def __init__(self, n: int) -> None:
        self.n, self.asked = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: Any) -> Any:
        if index >= self.n:
            raise IndexError(index)
        self.asked += 1
        return f"preshard-{index:06d}.tar", index


def measure(n_items: int, n_results: int) -> None:
    import ray

    from preshard.packer_service.runtime.ray import ray_cluster

    with ray_cluster(None, 2) as executor:
        list(executor.run(itemgetter(1), [("warm", i) for i in range(4)]))
        before, began = _peak_mib(), time.monotonic()
        items, first = Items(n_items), 0.0
        for done, _ in enumerate(executor.run(itemgetter(1), items), start=1):
            if done == 1:
                first, asked = time.monotonic() - began, items.asked
                stored = ray.cluster_resources()["object_store_memory"] - ray.available_resources().get(
                    "object_store_memory", 0
                )
            if done == min(n_results, n_items):
                break
        seconds = time.monotonic() - began - first
        speed = (done - 1) / seconds if seconds else 0.0
        print(
            f"{n_items:,} items: first result after {first:.1f} s, when {asked:,} were given to Ray "
            f"({stored / 2**20:,.0f} MiB in its store); then {speed:,.0f} results a second; "
            f"driver's peak +{_peak_mib() - before:,.0f} MiB",
            flush=True,
        )
        os._exit(0)  # what was not waited for would be


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--results", type=int, default=2000)
    parser.add_argument("--here", action="store_true", help="measure in this process")
    given = parser.parse_args()
    if given.here:
        measure(given.items[0], given.results)
        return
    print(hardware(), flush=True)
    for items in given.items:
        words = [sys.executable, __file__, "--here", "--items", str(items), "--results", str(given.results)]
        subprocess.run(words, check=True)


if __name__ == "__main__":
    main()

"""Planning in partitions: what it costs in time, in memory, and in packs that one plan of everything would save.

    python tests/benchmarks/scale.py [--documents 10000000] [--partition 1000000] [--processes 2] [--mixture mixed]
    python tests/benchmarks/scale.py --documents 100000000      # about two minutes on two cores

Every partition is planned by itself, as separate jobs would plan their parts of a source, in a process of its own; the
packs of all are compared with the lower bound of all documents together. First, on documents that one process can plan,
partitions of several sizes stand beside the one plan.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from machine import hardware  # noqa: E402
from mixtures import MIXTURES, SEQ_LEN, lengths  # noqa: E402

from packer_service.plan.cost import CostModel, causal_area  # noqa: E402
from packer_service.plan.make import align_lengths, make_plan  # noqa: E402
from packer_service.plan.order import straggler_ratio  # noqa: E402
from packer_service.plan.plan import Plan  # noqa: E402
from schemas.config import PackConfig  # noqa: E402

ALIGNMENT, MAX_IMAGES, WINDOW, DP_SIZE = 16, 384, 64, 64


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One partition's plan in figures. ``tokens`` are real, ``aligned`` what they take in a pack."""

    documents: int
    tokens: int
    aligned: int
    images: int
    packs: int
    straggler: float
    seconds: float
    peak_mib: float


def planner_seconds(tokens: np.ndarray, images: np.ndarray) -> tuple[Plan, float]:
    """A plan under the default budgets, and its processor time."""
    began = time.process_time()
    plan = make_plan(
        tokens=tokens, images=images, areas=causal_area(tokens), seq_len=SEQ_LEN, max_images=MAX_IMAGES,
        alignment=ALIGNMENT, window=WINDOW, seed=0, cost_model=CostModel.of(PackConfig()),
    )  # fmt: skip
    return plan, time.process_time() - began


def plan_part(documents: int, seed: int, *, mixture: str) -> Planned:
    """Plans a partition of documents drawn from the mixture; loading the compiled planner is not timed."""
    planner_seconds(*lengths(mixture, 300, seed))
    tokens, images = lengths(mixture, documents, seed)
    plan, seconds = planner_seconds(tokens, images)
    return Planned(
        documents=documents,
        tokens=int(tokens.sum()),
        aligned=int(align_lengths(tokens, ALIGNMENT).sum()),
        images=int(images.sum()),
        packs=plan.n_packs,
        straggler=straggler_ratio(plan.cost, DP_SIZE),
        seconds=seconds,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _plan_numbered(part: tuple[int, int], *, mixture: str) -> Planned:
    seed, documents = part
    return plan_part(documents, seed, mixture=mixture)


def plan_all(documents: int, partition: int, mixture: str, processes: int) -> Iterator[Planned]:
    """Partitions in processes that end after some, so that memory is what a few in a row leave."""
    sizes = [min(partition, documents - at) for at in range(0, documents, partition)]
    with get_context("spawn").Pool(processes, maxtasksperchild=10) as pool:
        yield from pool.imap(partial(_plan_numbered, mixture=mixture), list(enumerate(sizes)))


def bound(parts: list[Planned]) -> int:
    """Packs that all documents need at least, planned together."""
    tokens, images = sum(part.aligned for part in parts), sum(part.images for part in parts)
    return max(-(-tokens // SEQ_LEN), -(-images // MAX_IMAGES))


def row(label: str, parts: list[Planned], wall: float) -> str:
    packs = sum(part.packs for part in parts)
    fill = sum(part.tokens for part in parts) / (packs * SEQ_LEN)
    documents = sum(part.documents for part in parts)
    stragglers = np.average([part.straggler for part in parts], weights=[part.packs for part in parts])
    return (
        f"| {label} | {documents:,} | {packs:,} | {packs / bound(parts):.6f} | {fill:.4%} | {stragglers:.4f} | "
        f"{sum(part.seconds for part in parts):.1f} | {wall:.1f} | {max(part.peak_mib for part in parts):,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--partition", type=int, default=1_000_000, help="documents of a partition")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--mixture", choices=list(MIXTURES), default="mixed")
    given = parser.parse_args()
    print(f"{hardware()}, {given.processes} processes, mixture {given.mixture}\n")
    print(
        f"| partitions | documents | packs | x the bound | fill | straggler at DP {DP_SIZE} | CPU s | wall s | "
        "peak MiB a process |\n|---|---|---|---|---|---|---|---|---|"
    )
    whole = min(given.documents, 2_000_000)
    cases = [(whole, whole), (whole, whole // 10), (whole, whole // 100), (given.documents, given.partition)]
    for documents, partition in cases:
        began = time.perf_counter()
        parts = list(plan_all(documents, partition, given.mixture, given.processes))
        print(row(f"{len(parts)} of {partition:,}", parts, time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main()

"""Trains the same steps with every kind of attention, layout and split, and compares each with one process.

    python tests/trainer/training/lessons.py demo/source FOLDER  # makes DATASET, FOLDER/dataset, and a model beside it
    python tests/trainer/training/grid.py DATASET                # the whole grid in float64, a few minutes
    python tests/trainer/training/grid.py DATASET --dtype float32
    python tests/trainer/training/grid.py DATASET --cases ring/zigzag/u1r2d1 gather/balanced_gather/u1r2d2

The one process runs ``reference`` attention. A case passes if loss and gradient norm of every step differ from it by a
relative 1e-9 at most in float64, 1e-5 in float32. The exit status is 1 if a case does not pass.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset  # noqa: F401 (see run_cases)
import torch
import torch.distributed as dist
from planted import PLANTS

from preshard.trainer.config import make_config
from preshard.trainer.distributed.mesh import SHARDING_AXES, CpFsdp, Mesh, build_mesh
from preshard.trainer.loop import run
from preshard.trainer.metrics import StepFigures
from preshard.trainer.models.interface import register_attention
from preshard.trainer.setup import prepare

KINDS = ("ulysses", "ring", "gather", "hybrid")
LAYOUTS = ("contiguous", "zigzag", "balanced_ring", "balanced_gather")
SPLITS = ((1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (1, 8))
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run. Its name, such as ``ring/zigzag/u1r2d1``, gives kind, layout, ulysses, ring and dp_shard."""

    kind: str
    layout: str
    ulysses: int
    ring: int
    dp_shard: int = 1
    dp_replicate: int = 1
    accumulate: int = 1
    plant: str | None = None
    overlap: bool = False
    head_stride: int = 0
    cp_fsdp: CpFsdp = "all"

    @property
    def world_size(self) -> int:
        return self.ulysses * self.ring * self.dp_shard * self.dp_replicate

    @property
    def packs(self) -> int:
        """Packs per step: cases with the same number must agree."""
        return self.dp_shard * self.dp_replicate * self.accumulate

    @property
    def name(self) -> str:
        copies = f"x{self.dp_replicate}" * (self.dp_replicate > 1) + f"a{self.accumulate}" * (self.accumulate > 1)
        planted = f"+{self.plant}" if self.plant else ""
        option = f"-{self.cp_fsdp}" * (self.cp_fsdp != "all") + "-overlap" * self.overlap
        option += f"-stride{self.head_stride}" * (self.head_stride > 0)
        return f"{self.kind}/{self.layout}/u{self.ulysses}r{self.ring}d{self.dp_shard}{copies}{option}{planted}"


def full_grid() -> list[Case]:
    """Every kind x layout x split, data-parallel shards on half of the splits, and other ways to the same packs."""
    grid = [
        Case(kind=kind, layout=layout, ulysses=ulysses, ring=ring)
        for ulysses, ring in SPLITS
        for kind in KINDS
        for layout in LAYOUTS
    ]
    grid += [
        Case(kind=kind, layout=layout, ulysses=ulysses, ring=ring, dp_shard=2)
        for ulysses, ring in ((1, 1), (1, 2), (2, 1), (2, 2))
        for kind in KINDS
        for layout in LAYOUTS
    ]
    grid += [Case(kind=kind, layout="contiguous", ulysses=1, ring=1) for kind in KINDS]
    grid += [
        Case(kind="gather", layout="balanced_gather", ulysses=1, ring=2, dp_replicate=2),
        Case(kind="hybrid", layout="balanced_ring", ulysses=2, ring=2, dp_replicate=2),
        Case(kind="ring", layout="zigzag", ulysses=1, ring=2, accumulate=2),
        Case(kind="ulysses", layout="contiguous", ulysses=2, ring=1, overlap=True),
        Case(kind="ulysses", layout="zigzag", ulysses=2, ring=2, overlap=True),
        Case(kind="gather", layout="zigzag", ulysses=1, ring=2, head_stride=1),
    ]
    grid += [
        Case(kind=kind, layout="zigzag", ulysses=2, ring=2, dp_shard=dp_shard, cp_fsdp=cp_fsdp)
        for kind in ("gather", "ring")
        for dp_shard in (1, 2)
        for cp_fsdp in SHARDING_AXES
        if cp_fsdp != "all"
    ]
    return grid


def references(cases: Sequence[Case]) -> list[Case]:
    """One process for each number of packs per step."""
    return [
        Case(kind="reference", layout="contiguous", ulysses=1, ring=1, accumulate=packs)
        for packs in sorted({case.packs for case in cases})
    ]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all cases have in common."""

    dataset: str
    dtype: str
    steps: int


def run_cases(cases: Sequence[Case], settings: Settings, folder: Path) -> dict[str, list[StepFigures]]:
    """Figures of every case's steps. The processes of a world size start once and run all its cases in turn."""
    from torch import _dynamo  # noqa: F401 (what each first step would import, and not all that read this file)

    found: dict[str, list[StepFigures]] = {}
    register_attention().AutoModelForImageTextToText  # noqa: B018 (imported before the ranks are forked)
    for world_size in sorted({case.world_size for case in cases}):
        mine = [case for case in cases if case.world_size == world_size]
        # forked: this process has imported everything and has no thread yet; imports would take longer than a run
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        store = str(folder / f"store-{world_size}")
        ranks = [
            context.Process(target=_rank, args=(rank, world_size, store, mine, settings, results), daemon=True)
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        found |= _collect(results, ranks)
    return found


def _collect(results: Any, ranks: Sequence[Any]) -> dict[str, list[StepFigures]]:
    found = results.get()
    if isinstance(found, str):
        for process in ranks:
            process.kill()
        raise RuntimeError(found)
    for process in ranks:
        process.join()
    return found


def _rank(rank: int, world_size: int, store: str, cases: Sequence[Case], settings: Settings, results: Any) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
        found = {case.name: train_case(case, settings) for case in cases}
        dist.barrier()
        if rank == 0:
            results.put(found)
        dist.destroy_process_group()
    except Exception:  # the parent waits for one message, whatever happened
        results.put(f"rank {rank} of {world_size}\n{traceback.format_exc()}")


@lru_cache
def _meshes(dp_replicate: int, dp_shard: int, ring: int, ulysses: int, cp_fsdp: CpFsdp) -> Mesh:
    return build_mesh(
        "cpu",
        dp_replicate=dp_replicate,
        dp_shard=dp_shard,
        ring_degree=ring,
        ulysses_degree=ulysses,
        cp_fsdp=cp_fsdp,
    )


def train_case(case: Case, settings: Settings) -> list[StepFigures]:
    """A case's steps as this rank reports them. All ranks of the job call this."""
    mesh = _meshes(case.dp_replicate, case.dp_shard, case.ring, case.ulysses, case.cp_fsdp)
    config = make_config(
        {
            "data": settings.dataset,
            "steps": settings.steps,
            "ulysses": case.ulysses,
            "ring": case.ring,
            "dp_shard": case.dp_shard,
            "accumulate": case.accumulate,
            "attention": case.kind,
            "ulysses_overlap": case.overlap,
            "head_stride": case.head_stride,
            "cp_fsdp": case.cp_fsdp,
            "layout": case.layout,
            "model": str(Path(settings.dataset).with_name("model")),
            "from_scratch": True,
            "dtype": settings.dtype,
            "warmup": 2,
            "lr": 0.001,
        }
    )
    figures: list[StepFigures] = []
    rank = dist.get_rank()
    job = prepare(config, rank=rank, world_size=case.world_size)
    with PLANTS[case.plant](rank, case.world_size):
        run(job, mesh, torch.device("cpu"), figures.append)
    return figures


def difference(found: Sequence[StepFigures], right: Sequence[StepFigures]) -> float:
    """The largest relative difference of loss or gradient norm in any step."""
    if [(f.step, f.packs, f.tokens) for f in found] != [(f.step, f.packs, f.tokens) for f in right]:
        raise RuntimeError(f"not the same packs: {found} and {right}")
    pairs = [
        (getattr(ours, name), getattr(theirs, name))
        for ours, theirs in zip(found, right, strict=True)
        for name in ("loss", "grad_norm")
    ]
    return float(np.max([abs(ours - theirs) / abs(theirs) for ours, theirs in pairs]))  # NaN if any is


def compare(cases: Sequence[Case], found: dict[str, list[StepFigures]]) -> dict[Case, float]:
    """The largest difference of each case from one process; ``found`` has the figures of all and of the references."""
    right = {case.packs: found[case.name] for case in references(cases)}
    return {case: difference(found[case.name], right[case.packs]) for case in cases}


def table(differences: dict[Case, float]) -> Iterable[str]:
    """One line per kind and layout, one column per split."""
    splits = list(dict.fromkeys(case.name.rpartition("/")[2] for case in differences))
    width = max(map(len, splits)) + 2
    yield f"{'kind':<10}{'layout':<17}" + "".join(f"{split:>{width}}" for split in splits)
    for kind, layout in dict.fromkeys((case.kind, case.layout) for case in differences):
        row = {c.name.rpartition("/")[2]: d for c, d in differences.items() if (c.kind, c.layout) == (kind, layout)}
        cells = "".join(f"{row[split]:>{width}.1e}" if split in row else " " * width for split in splits)
        yield f"{kind:<10}{layout:<17}{cells}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--dtype", choices=TOLERANCE, default="float64")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cases", nargs="*", help="names of cases; by default all")
    parser.add_argument(
        "--plant",
        nargs="*",
        choices=[name for name in PLANTS if name],
        help="run each case with each of these mistakes",
    )
    parser.add_argument("--json", action="store_true", help="print the differences as one JSON object")
    given = parser.parse_args()
    grid = full_grid()
    cases = [case for case in grid if given.cases is None or case.name in given.cases]
    unknown = set(given.cases or ()) - {case.name for case in cases}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in grid)}")
    if given.plant:
        cases = [replace(case, plant=plant) for case in cases for plant in given.plant]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(dataset=given.dataset, dtype=given.dtype, steps=given.steps)
        found = run_cases([*references(cases), *cases], settings, Path(folder))
    differences = compare(cases, found)
    worst = np.max([*differences.values()])
    if given.json:
        print(json.dumps({case.name: value for case, value in differences.items()}))
    else:
        print("\n".join(table(differences)))
        print(f"{len(cases)} cases, {given.steps} steps, {given.dtype}: worst relative difference {worst:.1e}")
    sys.exit(not worst <= TOLERANCE[given.dtype])


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

"""Trains the same steps with every kind of attention, layout and split, and compares each with one process.

    python tests/support/lessons.py demo/source FOLDER  # makes DATASET, FOLDER/dataset, and a model beside it
    python tests/trainer/training/grid.py DATASET                # the whole grid in float64, a few minutes
    python tests/trainer/training/grid.py DATASET --dtype float32
    python tests/trainer/training/grid.py DATASET --cases ring/zigzag/u1r2d1 gather/balanced_gather/u1r2d2

The one process runs ``reference`` attention. A case passes if loss and gradient norm of every step differ from it by a
relative 1e-9 at most in float64, 1e-5 in float32. The exit status is 1 if a case does not pass.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from gloo_pool import GlooPool
from packed_ranks import mesh_of
from planted import PLANTS

from preshard.trainer.core.config import make_config
from preshard.trainer.core.mesh import SHARDING_AXES, CpFsdp, Mesh
from preshard.trainer.core.metrics import StepFigures
from preshard.trainer.core.setup import prepare
from preshard.trainer.train import run

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
        Case(kind="gather", layout="zigzag", ulysses=1, ring=2, overlap=True, head_stride=1),
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
    """Settings that all cases have in common."""

    dataset: str
    dtype: str
    steps: int


def run_cases(pool: GlooPool, cases: Sequence[Case], settings: Settings) -> dict[str, list[StepFigures]]:
    """Figures of every case's steps."""
    found = {}
    for case in sorted(cases, key=lambda case: case.world_size):
        degrees = {name: getattr(case, name) for name in ("ulysses", "ring", "dp_shard", "dp_replicate")}
        found[case.name] = pool.run(train_case, vars(case), vars(settings), **degrees)[0]
    return found


def train_case(mesh: Mesh, of_case: dict[str, Any], of_all: dict[str, Any]) -> list[StepFigures]:
    """A case's steps as this rank of the pool reports them."""
    case, settings = Case(**of_case), Settings(**of_all)
    if case.cp_fsdp != "all":
        mesh = mesh_of(tuple(mesh.world.mesh.shape), case.cp_fsdp)
    config = make_config(
        {
            "data": settings.dataset,
            "steps": settings.steps,
            "ulysses": case.ulysses,
            "ring": case.ring,
            "dp_shard": case.dp_shard,
            "accumulate": case.accumulate,
            "attention": case.kind,
            "overlap": case.overlap,
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
        pool = GlooPool(Path(folder))
        settings = Settings(dataset=given.dataset, dtype=given.dtype, steps=given.steps)
        found = run_cases(pool, [*references(cases), *cases], settings)
        pool.close()
    differences = compare(cases, found)
    worst = np.max([*differences.values()])
    if given.json:
        print(json.dumps({case.name: value for case, value in differences.items()}))
    else:
        print("\n".join(table(differences)))
        print(f"{len(cases)} cases, {given.steps} steps, {given.dtype}: worst relative difference {worst:.1e}")
    sys.exit(not worst <= TOLERANCE[given.dtype])


if __name__ == "__main__":
    main()

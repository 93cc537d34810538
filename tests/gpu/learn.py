"""Training by ``preshard.train``: losses on the device over those of a CPU in float32, and an export that loads.

A tiny Qwen3-VL for 200 steps on both, the same with adapters, and a model of 0.5 billion parameters for 200 steps of
which a CPU takes the first three.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
from common import Given, Table

from preshard.models import load_model
from preshard.trainer.train import main as train

NAMES = ("tiny", "adapters", "0.5B")
EXACT = ("--dtype", "float32", "--recompute", "none", "--no-compile")
BOUNDS = {"float32": 1e-3, "bfloat16": 3e-2}
"""Relative difference of losses of the first ten steps."""
FIRST, LAST = 10, 50
"""Steps whose losses are compared one by one, and steps at the end whose mean is."""


def losses(options: list[str], folder: Path, name: str) -> list[float]:
    """The loss of each step of a run in this process."""
    path = folder / f"{name}.jsonl"
    try:
        train([*options, "--log-every", "50", "--metrics", str(path)])
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"preshard.train ended with {ended.code}") from ended
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


def run(given: Given) -> int:
    """Red rows."""
    columns = ["model", "what", "steps", "loss apart", "end apart", "first", "last", "s", "verdict"]
    table = Table(given.out / "training.json", columns, common.machine(given.device))
    common.exact_products()
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        tiny = given.data / "families" / "qwen3_vl"
        steps = 8 if given.small else 200
        if "tiny" in given.chosen(NAMES):
            compare(given, table, work, "tiny", tiny / "model", tiny / "dataset", steps, on_cpu=steps)
        if "adapters" in given.chosen(NAMES):
            folders = tiny / "model", tiny / "dataset"
            compare(given, table, work, "adapters", *folders, steps, on_cpu=steps, more=["--lora", "8"])
        if not given.small and not given.over and "0.5B" in given.chosen(NAMES):
            model, packs = work / "half", given.data / "families" / "qwen3" / "dataset"
            load_model(given.data / "half_billion", from_scratch=True, seed=1).save_pretrained(model)
            compare(given, table, work, "0.5B", model, packs, 200, on_cpu=3)
    return table.red


def compare(
    given: Given,
    table: Table,
    work: Path,
    name: str,
    model: Path,
    packs: Path,
    steps: int,
    *,
    on_cpu: int,
    more: Sequence[str] = (),
) -> None:
    """Rows of one model: a CPU's, the same on the device, and training as it is by default, exported."""
    # a cosine would depend on the number of steps
    options = [
        "--data",
        str(packs),
        "--model",
        str(model),
        "--lr",
        "1e-3",
        *("--warmup", "5", "--min-lr", "1", "--seed", "1", *more),
    ]
    right: list[float] = []
    first = min(steps, on_cpu)
    ways: dict[str, list[str]] = {
        "float32, CPU": [*EXACT, "--device", "cpu", "--steps", str(first)],
        "float32": [*EXACT, "--device", given.device, "--steps", str(first)],
        "bfloat16": ["--device", given.device, "--steps", str(steps), "--export", str(work / f"{name}-out")],
    }
    if given.small:
        ways["bfloat16"] += ["--dtype", "bfloat16", "--no-compile"]
    for what, chosen in ways.items():
        with table.row(model=name, what=what, steps=steps if what == "bfloat16" else first) as row:
            if not right and what != next(iter(ways)):
                raise RuntimeError("there is nothing to compare with")
            found = losses([*options, *chosen], work, f"{name}-{what.replace(', ', '-')}")
            right = right or found
            pairs: list[Any] = list(zip(found[:first], right, strict=True))
            row["loss apart"] = max(abs(a - b) / b for a, b in pairs[:FIRST])
            if len(pairs) >= 2 * LAST:
                ends = [statistics.fmean(of[len(pairs) - LAST : len(pairs)]) for of in (found, right)]
                row["end apart"] = abs(ends[0] / ends[1] - 1)
            row |= {"first": found[0], "last": found[-1], "losses": found}
            worst = max(row["loss apart"], row.get("end apart", 0.0))
            row["verdict"] = "ok" if worst <= BOUNDS[what.partition(",")[0]] else "APART"
            if what == "bfloat16":
                load_model(work / f"{name}-out")
                if steps >= 200 and found[-1] >= found[0]:
                    row["verdict"] = "LEARNT NOTHING"

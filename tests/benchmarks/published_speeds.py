"""Prints how long steps of published runs took, beside what ``preshard advise`` estimates for them.

    python tests/benchmarks/published_speeds.py

Nothing is trained. "0.65" is the estimate with that share of the peak for all outside attention, whatever the device.
torchtitan's H100 had 2.4 TB/s of memory and a limit of 500 W; its selective recomputation is between ours and none.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np  # noqa: E402
from machine import hardware  # noqa: E402
from training_estimates import LLAMA, TEXT  # noqa: E402

from preshard.packer_service.report.advice.estimate.loads import COLUMNS, PackLoads  # noqa: E402
from preshard.packer_service.report.advice.estimate.seconds import Estimate  # noqa: E402
from preshard.packer_service.report.advice.estimate.split import SplitChoice  # noqa: E402
from preshard.packer_service.report.advice.question import make_question  # noqa: E402
from preshard.schemas.layout import TILE  # noqa: E402
from preshard.schemas.model.dimensions import model_dimensions  # noqa: E402
from preshard.schemas.model.savings import Saving  # noqa: E402

GPUS = 8


class Run(NamedTuple):
    """A published run: documents of a rank's step, the ranks that share them, and the step's seconds."""

    name: str
    text: dict[str, Any]
    documents: int
    tokens: int
    ulysses: int
    seconds: float
    asked: dict[str, Any]


OLD = {"memory_gb_per_s": 2400}
RUNS = (
    Run("torchtitan, H100, plain", LLAMA, 2, 8192, 1, 2 * 8192 / 5762, {**OLD, "compiled": False}),
    Run("torchtitan, H100, compiled", LLAMA, 2, 8192, 1, 2 * 8192 / 6667, OLD),
    Run("torchtitan, A100", LLAMA, 1, 8192, 1, 8192 / 2973, {"gpu": "a100"}),
    Run("TRL, H100, plain", TEXT, 1, 2**20, 8, 380, {"compiled": False}),
)
"""https://github.com/pytorch/torchtitan: benchmarks/llama3_h100_202412_torchtitan.md, docs/performance.md of 2024;
https://github.com/huggingface/trl/pull/6846."""


def estimated(run: Run, saving: Saving, **asked: Any) -> float:
    """Seconds of a step."""
    tiles = run.tokens // TILE
    of_pack = {"n_tokens": run.documents * run.tokens, "attention_tiles": run.documents * tiles * (tiles + 1) // 2}
    columns = {name: np.full(GPUS, of_pack.get(name, 0)) for name in COLUMNS}
    loads = PackLoads(n_packs=GPUS, spans=(range(GPUS),), columns=columns, layouts={}, images={})
    split = SplitChoice(
        ulysses=run.ulysses, ring=1, layout="contiguous", kind="ulysses" if run.ulysses > 1 else "none",
        dp=GPUS // run.ulysses,
    )  # fmt: skip
    question = make_question({"gpus": GPUS, **run.asked, **asked})
    sizes = model_dimensions(run.text, None, run.name)
    estimate = Estimate(sizes=sizes, question=question, loads=loads, seq_len=run.documents * run.tokens)
    return float(estimate.of_packs(split, saving).total[0])


def main() -> int:
    print(f"{hardware()}; estimates, which no GPU has confirmed\n")
    print(f"| run | seconds | recompute | 0.65 | ratio | estimated | ratio |\n|{'---|' * 7}")
    for run in RUNS:
        for recompute in ("none", "selective") if run.ulysses == 1 else ("selective", "full"):
            saving = Saving(recompute=recompute)
            before, after = (estimated(run, saving, linear_efficiency=given) for given in (0.65, None))
            figures = (f"{each:.2f} | {each / run.seconds:.2f}" for each in (before, after))
            print(f"| {run.name} | {run.seconds:.2f} | {recompute} | {' | '.join(figures)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

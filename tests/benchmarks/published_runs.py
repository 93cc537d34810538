"""Prints what a rank is estimated to hold in runs that others have published, with all that saves memory here.

    python tests/benchmarks/published_runs.py

Nothing is trained. The estimate is that of the trainer and of ``preshard advise``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np  # noqa: E402
from machine import hardware  # noqa: E402
from training_estimates import H100, TEXT  # noqa: E402

from preshard.schemas.model.dimensions import model_dimensions  # noqa: E402
from preshard.schemas.model.memory import USABLE  # noqa: E402
from preshard.trainer.config import TrainConfig  # noqa: E402
from preshard.trainer.fit import Fitting, Packs  # noqa: E402

LLAMA = {**TEXT, "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128256}
RUNS: tuple[tuple[str, dict[str, Any], int, int, dict[str, Any]], ...] = (
    ("TRL, Qwen3-8B", TEXT, 1_048_576, 8, {"ulysses": 8}),
    ("TRL, Qwen3-8B", TEXT, 1_048_576, 8, {"ring": 8}),
    ("TRL, Qwen3-8B", TEXT, 1_048_576, 8, {"ring": 8, "head_stride": 1}),
    ("TRL, Qwen3-8B", TEXT, 1_048_576, 8, {"ring": 8, "attention": "ring"}),
    ("ALST, Llama-8B", LLAMA, 500_096, 1, {}),
    ("ALST, Llama-8B", LLAMA, 3_700_736, 8, {"ulysses": 8}),
    ("ALST, Llama-8B", LLAMA, 15_003_648, 32, {"ulysses": 32}),
    ("ALST, Llama-8B", LLAMA, 15_003_648, 32, {"ulysses": 8, "ring": 4, "attention": "ring"}),
    ("torchtitan, Llama 3.1 8B", LLAMA, 131_072, 8, {"ring": 4, "dp_shard": 2, "recompute": "full"}),
    ("torchtitan, Llama 3.1 8B", LLAMA, 262_144, 8, {"ring": 8, "recompute": "full"}),
)
SAVING = {"recompute": "full", "offload": "all", "mlp_tiles": 64, "logits_mib": 256}


def main() -> int:
    print(f"{hardware()}; estimates in 10^9 bytes a rank; no GPU has confirmed them\n")
    columns = [
        "run",
        "tokens",
        "GPUs",
        "split",
        "state",
        "gathered",
        "activations",
        "keys",
        "logits",
        "all",
        "on the host",
        "fits 80 GB",
    ]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, text, tokens, ranks, split in RUNS:
        sizes = model_dimensions(text, None, name)
        packs = Packs(seq_len=tokens, images=np.zeros((3, 1), np.int64), rings=frozenset({ranks}))
        saving = {} if "recompute" in split else SAVING
        given = {"data": "DATASET", "model": "DIR", "steps": 1, "dtype": "bfloat16", "compile": True, **saving, **split}
        found = Fitting(sizes=sizes, packs=packs, device=H100).estimate(TrainConfig.model_validate(given))
        parts = found.parts
        figures = [*parts.on_device.values(), parts.total, parts.host]
        how = " ".join(f"{key} {value}" for key, value in split.items()) or "one GPU"
        cells = [name, f"{tokens:,}", str(ranks), how, *(f"{each / 1e9:.1f}" for each in figures)]
        print(f"| {' | '.join(cells)} | {'yes' if parts.total <= USABLE * H100 else 'no'} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

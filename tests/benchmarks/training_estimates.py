"""Prints what a rank of eight is estimated to hold of a Qwen3-VL-8B, as the trainer and ``preshard advise`` estimate.

    python tests/benchmarks/training_estimates.py

Packs are full of images of 1,024 patches each, which become 256 tokens. Nothing is trained or measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np  # noqa: E402
from machine import hardware  # noqa: E402

from preshard.schemas.manifest import VisionEncoder  # noqa: E402
from preshard.schemas.model.dimensions import model_dimensions  # noqa: E402
from preshard.schemas.model.savings import RECOMPUTE  # noqa: E402
from preshard.trainer.core.config import TrainConfig  # noqa: E402
from preshard.trainer.extra.memory_check import GIB, Fitting, Packs  # noqa: E402

H100 = 85_045_936_128
"""Memory of an H100 of 80 GB, as CUDA states it."""

TEXT = {
    "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 151936,
}  # fmt: skip
LLAMA = {**TEXT, "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128256, "model_type": "llama"}
ENCODER = VisionEncoder(
    patch_size=[16, 16], temporal_patch_size=2, hidden_size=1152, intermediate_size=4304, mlp_matrices=2, layers=27,
    windowed_layers=0, window_size=0, patch_inputs=1536, row_inputs=4 * 4608, row_hidden=4608, row_outputs=4 * 4096,
)  # fmt: skip
"""The encoder as in the published configuration."""

RANKS, PATCHES, ROWS = 8, 1024, 256


def print_eight() -> None:
    """Prints, for each dtype and length, what each way to recompute leaves, and what ``auto`` takes."""
    sizes = model_dimensions({"text_config": TEXT}, ENCODER, "Qwen3-VL-8B")
    print(f"{hardware()}; {sizes.parameters / 1e9:.2f} billion parameters, {RANKS} ranks to a pack, GiB a rank\n")
    columns = ["tokens of a pack", "dtype", *RECOMPUTE, "auto on an H100"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for tokens in (36_864, 131_072, 262_144):
        images = np.array([[1], [PATCHES], [ROWS]]) * (tokens // ROWS)
        packs = Packs(seq_len=tokens, images=images, rings=frozenset({RANKS}))
        fitting = Fitting(sizes=sizes, packs=packs, device=H100)
        for dtype in ("bfloat16", "float32"):
            given = {"data": "DATASET", "model": "DIR", "steps": 1, "ring": RANKS, "dtype": dtype}
            auto = TrainConfig.model_validate({**given, "layout": "balanced_gather", "compile": True})
            held = [fitting.estimate(auto.model_copy(update={"recompute": way})).parts.total / GIB for way in RECOMPUTE]
            taken, found = fitting.least_recompute(auto)
            chosen = taken.recompute if found.fits else fitting.remedy(taken, RANKS)
            print(f"| {tokens:,} | {dtype} | {' | '.join(f'{each:.1f}' for each in held)} | {chosen} |")


if __name__ == "__main__":
    print_eight()

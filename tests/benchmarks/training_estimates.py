"""Prints what a rank is estimated to hold, by the estimate of the trainer and of ``preshard advise``.

    python tests/benchmarks/training_estimates.py                 # a Qwen3-VL-8B on eight ranks a pack
    python tests/benchmarks/training_estimates.py --published     # runs of others, with all that saves memory here

Packs of the first are full of images of 1,024 patches each, which become 256 tokens. Nothing is trained or measured.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np  # noqa: E402
from machine import hardware  # noqa: E402

from preshard.schemas.model.dimensions import model_dimensions  # noqa: E402
from preshard.schemas.model.encoder import VisionEncoder  # noqa: E402
from preshard.schemas.model.memory import RECOMPUTE, USABLE  # noqa: E402
from preshard.trainer.config import TrainConfig  # noqa: E402
from preshard.trainer.fit import GIB, Fitting, Packs  # noqa: E402

H100 = 85_045_936_128
"""What CUDA says of an H100 of 80 GB."""

TEXT = {
    "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 151936,
}  # fmt: skip
ENCODER = VisionEncoder(
    patch_size=[16, 16], temporal_patch_size=2, hidden_size=1152, intermediate_size=4304, mlp_matrices=2, layers=27,
    windowed_layers=0, window_size=0, patch_inputs=1536, row_inputs=4 * 4608, row_hidden=4608, row_outputs=4 * 4096,
)  # fmt: skip
"""As the published configuration has them."""

RANKS, PATCHES, ROWS = 8, 1024, 256

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
PARTS = ("state", "gathered", "activations", "keys", "logits")


def print_eight() -> None:
    """Of each dtype and length, what each way to recompute leaves, and what ``auto`` takes."""
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


def print_published() -> None:
    """Of each run, in 10^9 bytes, the parts of what a rank holds."""
    columns = ["run", "tokens", "GPUs", "split", *PARTS, "all", "on the host", "fits 80 GB"]
    print(f"{hardware()}; estimates in 10^9 bytes a rank; no GPU has confirmed them\n")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, text, tokens, ranks, split in RUNS:
        sizes = model_dimensions(text, None, name)
        packs = Packs(seq_len=tokens, images=np.zeros((3, 1), np.int64), rings=frozenset({ranks}))
        saving = {} if "recompute" in split else SAVING
        given = {"data": "DATASET", "model": "DIR", "steps": 1, "dtype": "bfloat16", "compile": True, **saving, **split}
        parts = Fitting(sizes=sizes, packs=packs, device=H100).estimate(TrainConfig.model_validate(given)).parts
        figures = [*parts.on_device.values(), parts.total, parts.host]
        how = " ".join(f"{key} {value}" for key, value in split.items()) or "one GPU"
        cells = [name, f"{tokens:,}", str(ranks), how, *(f"{each / 1e9:.1f}" for each in figures)]
        print(f"| {' | '.join(cells)} | {'yes' if parts.total <= USABLE * H100 else 'no'} |")


if __name__ == "__main__":
    print_published() if sys.argv[1:] == ["--published"] else print_eight()

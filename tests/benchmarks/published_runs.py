"""Prints what a rank is estimated to hold in runs that others have published, with all that saves memory here.

    python tests/benchmarks/published_runs.py [--dry-run FOLDER] [--only "ALST"]

Nothing is trained. The estimate is that of the trainer and of ``preshard advise``. A dry run counts beside it what the
trainer's own step holds, for packs of one document of text; models without weights and packs are made in the folder,
and used again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np  # noqa: E402
from machine import hardware  # noqa: E402
from training_estimates import ENCODER, H100, LLAMA, TEXT  # noqa: E402

import preshard  # noqa: E402
from preshard.packer_service.demo.model import write_model_folder  # noqa: E402
from preshard.schemas.model.dimensions import ModelDimensions, model_dimensions  # noqa: E402
from preshard.schemas.model.memory import USABLE  # noqa: E402
from preshard.trainer.core.config import TrainConfig  # noqa: E402
from preshard.trainer.extra.dry_run.run import dry_run  # noqa: E402
from preshard.trainer.extra.memory_check import FitEstimate, Fitting, Packs  # noqa: E402
from tests.support.indexed_files import write_indexed  # noqa: E402

BIG = {**TEXT, "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64, "intermediate_size": 25600}
PLAIN: dict[str, Any] = {"recompute": "full"}
"""Memory saving that these runs report; where they say more, all that saves memory is taken."""

FRAMES, FRAME = 384, (729, 81)
"""Size of Molmo2's longest videos: pictures, each with so many patches and rows."""

Run = tuple[str, dict[str, Any], int, int, dict[str, Any]]
RUNS: tuple[Run, ...] = (
    ("TRL, Qwen3-8B", TEXT, 1_048_576, 8, {"ulysses": 8}),
    ("TRL, Qwen3-8B", TEXT, 1_048_576, 8, {"ring": 8}),
    ("TRL, Qwen3-8B", TEXT, 1_048_576, 8, {"ring": 8, "head_stride": 1}),
    ("TRL, Qwen3-8B", TEXT, 1_048_576, 8, {"ring": 8, "attention": "ring"}),
    ("ALST, Llama-8B", LLAMA, 500_096, 1, {}),
    ("ALST, Llama-8B", LLAMA, 3_700_736, 8, {"ulysses": 8}),
    ("ALST, Llama-8B", LLAMA, 15_003_648, 32, {"ulysses": 32}),
    ("torchtitan, Llama 3.1 8B", LLAMA, 131_072, 8, {"ring": 4, "dp_shard": 2, **PLAIN}),
    ("torchtitan, Llama 3.1 8B", LLAMA, 262_144, 8, {"ring": 8, **PLAIN}),
    ("torchtitan, Llama-8B", LLAMA, 1_048_576, 32, {"ring": 32, **PLAIN}),
    ("accelerate, Llama-8B", LLAMA, 128_000, 8, {"ring": 8, **PLAIN}),
    ("accelerate, Llama-8B", LLAMA, 524_288, 32, {"ring": 32, **PLAIN}),
    ("xorl, Qwen3-8B", TEXT, 64_000, 8, {"ring": 8, "attention": "ring", **PLAIN}),
    ("xorl, Qwen3-8B", TEXT, 64_000, 8, {"ring": 2, "ulysses": 4, "attention": "ring", **PLAIN}),
    ("xorl, Qwen3-8B", TEXT, 128_000, 4, {"ulysses": 4, **PLAIN}),
    ("xorl, Qwen3-8B", TEXT, 128_000, 8, {"ulysses": 8, **PLAIN}),
    ("xorl, Qwen3-32B", BIG, 128_000, 8, {"ulysses": 8}),
    ("Molmo2-8B", TEXT, 36_864, 8, {"ulysses": 2, "dp_shard": 4, **PLAIN}),
    ("Molmo2-8B", TEXT, 36_864, 8, {"ring": 2, "dp_shard": 4, "head_stride": 1, **PLAIN}),
)
SAVING = {"recompute": "full", "offload": "all", "mlp_tiles": 64, "logits_mib": 256}


def settings(split: dict[str, Any], **given: Any) -> TrainConfig:
    saving = {} if "recompute" in split else SAVING
    plain = {"data": "DATASET", "model": "DIR", "steps": 1, "dtype": "bfloat16", "compile": True}
    return TrainConfig.model_validate({**plain, **saving, **split, **given})


def dimensions(run: Run) -> ModelDimensions:
    name, text = run[:2]
    return model_dimensions({"text_config": text}, ENCODER if name.startswith("Molmo2") else None, name)


def estimate(run: Run) -> FitEstimate:
    """Memory that the trainer estimates for a rank of an H100."""
    name, _, tokens, ranks, split = run
    images = np.array([[1], FRAME[:1], FRAME[1:]]) * FRAMES * name.startswith("Molmo2")
    packs = Packs(seq_len=tokens, images=images, rings=frozenset({ranks}))
    return Fitting(sizes=dimensions(run), packs=packs, device=H100).estimate(settings(split))


def count(run: Run, folder: Path) -> float:
    """The most bytes that a dry run of it counts."""
    _, text, tokens, _, split = run
    family = str(text.get("model_type", "qwen3"))
    model, packs = folder / f"{family}-{text['hidden_size']}", folder / f"{family}-{tokens}"
    if not (model / "config.json").exists():
        write_model_folder(model, "qwen3", vocabulary=100_000)
        config = json.loads((model / "config.json").read_text())
        named = {"model_type": family, "architectures": [f"{family.capitalize()}ForCausalLM"]}
        config |= {**text, **named, "max_position_embeddings": 2**24}
        (model / "config.json").write_text(json.dumps(config))
    ring, ulysses = split.get("ring", 1), split.get("ulysses", 1)
    layout = f"balanced_{'ring' if split.get('attention') == 'ring' else 'gather'}" if ring > 1 else "contiguous"
    at_a_time = split.get("dp_shard", 1)
    packs = packs.with_name(f"{packs.name}-{layout}{ring}-{ring * ulysses}-{at_a_time}")
    if not (packs / "manifest.json").exists():
        write_indexed(folder / f"{tokens}.bin", [[[5] * tokens]] * at_a_time)
        preshard.pack(
            folder / f"{tokens}.bin", packs, model=str(model), seq_len=tokens, cp_sizes=[ring * ulysses],
            ring_degrees=[ring], layouts=[layout], order={"window": 1}, executor="local", progress=False,
        )  # fmt: skip
    given = {"data": str(packs), "model": model, "layout": layout, "dry_run": True, "gpu": "h100"}
    return dry_run(settings(split, **given)).peak


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--dry-run", type=Path)
    arguments.add_argument("--only", default="")
    given = arguments.parse_args()
    print(f"{hardware()}; in 10^9 bytes a rank; no GPU has confirmed them\n")
    columns = [
        *("run", "tokens", "GPUs", "split", "state", "gathered", "activations", "keys", "logits", "all"),
        *("on the host", "fits 80 GB", *["dry run", "ratio"][: 2 * bool(given.dry_run)]),
    ]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for run in RUNS:
        name, _, tokens, ranks, split = run
        if not f"{name} {tokens}".startswith(given.only):
            continue
        parts = estimate(run).parts
        figures = [*parts.on_device.values(), parts.total, parts.host]
        how = " ".join(f"{key} {value}" for key, value in split.items()) or "one GPU"
        cells = [name, f"{tokens:,}", str(ranks), how, *(f"{each / 1e9:.1f}" for each in figures)]
        cells.append("yes" if parts.total <= USABLE * H100 else "no")
        if given.dry_run and not name.startswith("Molmo2"):
            counted = count(run, given.dry_run)
            cells += [f"{counted / 1e9:.1f}", f"{parts.total / counted:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

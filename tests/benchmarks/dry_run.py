"""Prints the memory of a rank as the trainer and ``preshard advise`` estimate it, beside what a dry run counts.

    python tests/benchmarks/dry_run.py --folder /tmp/dry-run [--model qwen3_vl] [--seq-len 36864] [--bytes]

Models have the published dimensions of Qwen3-VL-8B, Qwen3-8B and Gemma 3 12B and no weights. Each pack is one document
of text, with photographs if the model takes any, so that every rank needs nearly all keys. Models and packs are made in
the folder, and used again. Nothing is computed, and no GPU has confirmed a figure.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np  # noqa: E402
from machine import hardware  # noqa: E402
from PIL import Image  # noqa: E402

import preshard  # noqa: E402
from preshard.packer_service.demo.model import write_model_folder  # noqa: E402
from preshard.packer_service.report.advice.estimate.outside import GATHERED, OWNED, OutsideAttention  # noqa: E402
from preshard.packer_service.report.advice.model import folder_sizes  # noqa: E402
from preshard.packer_service.report.advice.question import make_question  # noqa: E402
from preshard.schemas.model.savings import Saving  # noqa: E402
from preshard.trainer.core.config import TrainConfig  # noqa: E402
from preshard.trainer.extra.dry_run.run import DryRun, dry_run  # noqa: E402
from preshard.trainer.extra.memory_check import GIB  # noqa: E402

QWEN = {
    "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 151936, "tie_word_embeddings": False, "max_position_embeddings": 2**21,
}  # fmt: skip
QWEN_ENCODER = {
    "depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304, "out_hidden_size": 4096,
    "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip
GEMMA = {
    "hidden_size": 3840, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
    "intermediate_size": 15360, "vocab_size": 262208, "sliding_window": 1024, "max_position_embeddings": 2**21,
    "layer_types": [("full" if number % 6 == 5 else "sliding") + "_attention" for number in range(48)],
}  # fmt: skip
GEMMA_ENCODER = {
    "num_hidden_layers": 27, "hidden_size": 1152, "num_attention_heads": 16, "intermediate_size": 4304,
    "image_size": 896, "patch_size": 14,
}  # fmt: skip
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3_vl": ({**QWEN, "rope_scaling": None}, QWEN_ENCODER),
    "qwen3": (QWEN, {}),
    "gemma3": (GEMMA, GEMMA_ENCODER),
}
SIDE, ROWS = 1024, {"qwen3_vl": 1024, "gemma3": 256}
"""Size of a photograph: pixels of its sides, and tokens that it becomes at most."""

SPLITS = {1: {}, 8: {"ring": 8}, 64: {"ring": 8, "ulysses": 8}}
ALL = {"recompute": "full", "offload": "all", "mlp_tiles": 8, "logits_mib": 256}
CASES: list[tuple[int, int, dict[str, Any]]] = [
    *((tokens, cp, {"recompute": "selective"}) for tokens in (36_864, 131_072, 1_048_576) for cp in (8, 64)),
    *((tokens, cp, {"recompute": "none"}) for tokens in (36_864, 131_072) for cp in (8, 64)),
    (131_072, 8, {"recompute": "full"}),
    *((131_072, 8, {"recompute": "selective", "attention": kind}) for kind in ("ring", "ulysses")),
    (131_072, 64, {"recompute": "selective", "attention": "ring"}),
    (131_072, 8, {"recompute": "full", "offload": "host"}),
    (131_072, 8, ALL),
    *((1_048_576, 8, {**ALL, "attention": kind}) for kind in ("gather", "ring", "ulysses")),
    (1_048_576, 8, {**ALL, "head_stride": 1}),
]


def make_model(folder: Path, family: str) -> Path:
    """A model folder of the published dimensions; no weights."""
    if not (folder / "config.json").exists():
        write_model_folder(folder, family)
        path, (text, encoder) = folder / "config.json", MODELS[family]
        config = json.loads(path.read_text())
        own = config.get("text_config", config)
        own.update({name: value for name, value in text.items() if name != "rope_scaling"})
        if "mrope_section" in own.get("rope_parameters", {}):
            own["rope_parameters"]["mrope_section"] = [24, 20, 20]
        config["tie_word_embeddings"] = text.get("tie_word_embeddings", True)
        config.get("vision_config", {}).update(encoder)
        if family == "gemma3":
            config["mm_tokens_per_image"], side = ROWS[family], encoder["image_size"]
            _set(folder / "processor_config.json", image_seq_length=ROWS[family])
            _set(folder / "preprocessor_config.json", size={"height": side, "width": side})
        path.write_text(json.dumps(config))
    return folder


def _set(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def make_packs(folder: Path, family: str, model: Path, tokens: int, *, text: bool = False) -> Path:
    """One pack of so many tokens, of one document, with images where the model takes them."""
    if (folder / "manifest.json").exists():
        return folder
    source = folder.with_name(f"{folder.name}-source")
    source.mkdir(parents=True, exist_ok=True)
    rows = 0 if text else ROWS.get(family, 0)
    images = tokens // 3072 if rows else 0
    if images:
        noise = np.random.default_rng(0).integers(0, 255, (SIDE // 16, SIDE // 16, 3), np.uint8)
        Image.fromarray(noise).resize((SIDE, SIDE)).save(source / "photograph.png")
    content = [{"type": "image", "image": "photograph.png"}] * images
    said = "a river " * ((tokens - images * (rows + 40) - 600) // 2)
    asked = [*content, {"type": "text", "text": "what is this?"}]
    row = {"id": "row", "messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}
    (source / "rows.jsonl").write_text(json.dumps(row) + "\n")
    preshard.pack(
        source / "rows.jsonl", folder, model=str(model), seq_len=tokens, cp_sizes=[1, 8, 64], ring_degrees=[1, 8],
        layouts=["contiguous", "zigzag", "balanced_gather", "balanced_ring"], max_images=100_000, order={"window": 1},
        executor="local", progress=False,
    )  # fmt: skip
    return folder


def run_case(model: Path, packs: Path, cp: int, changed: dict[str, Any]) -> tuple[DryRun, float]:
    layout = "balanced_ring" if changed.get("attention") == "ring" else "balanced_gather"
    given = {"data": str(packs), "model": model, "steps": 1, "dry_run": True, "layout": layout, **SPLITS[cp]}
    began = time.process_time()
    return dry_run(TrainConfig.model_validate({**given, **changed})), time.process_time() - began


def print_bytes(folder: Path, family: str) -> None:
    """Prints the bytes of a whole pack of text on one rank, which exchanges nothing."""
    model, tokens = make_model(folder / family, family), 36_864
    packs = make_packs(folder / f"{family}-text-{tokens}", family, model, tokens, text=True)
    sizes = folder_sizes(str(model))
    outside = OutsideAttention(sizes=sizes, question=make_question({"gpus": 1}))
    for compiled in (False, True):
        for recompute in ("none", "selective"):
            changed = {"layout": "contiguous", "compile": compiled, "recompute": recompute}
            counted = run_case(model, packs, 1, changed)[0].moved_by("other") / 1e9
            moved = outside.moved(tokens, Saving(recompute=recompute), compiled=compiled)
            moved = (moved + (GATHERED + OWNED) * sizes.parameters) / 1e9
            figures = f"{moved:,.0f} | {counted:,.0f} | {moved / counted:.2f}"
            print(f"| {family} | {'compiled' if compiled else 'plain'} | {recompute} | {figures} |", flush=True)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=Path, required=True)
    arguments.add_argument("--model", choices=MODELS, action="append")
    arguments.add_argument("--seq-len", type=int, action="append")
    arguments.add_argument("--only-packs", action="store_true")
    arguments.add_argument("--bytes", action="store_true")
    given = arguments.parse_args()
    print(f"{hardware()}; no GPU has confirmed a figure\n")
    if given.bytes:
        print(f"| model | blocks | recompute | estimate, GB | dry run, GB | ratio |\n|{'---|' * 6}")
        for family in given.model or MODELS:
            print_bytes(given.folder, family)
        return 0
    columns = ["model", "tokens", "cp", "attention", "recompute", "offload", "estimate, GiB", "dry run, GiB", "ratio"]
    print(f"| {' | '.join([*columns, 'CPU s'])} |\n|{'---|' * (len(columns) + 1)}")
    for family in given.model or MODELS:
        model = make_model(given.folder / family, family)
        for tokens, cp, changed in CASES:
            if given.seq_len and tokens not in given.seq_len:
                continue
            packs = make_packs(given.folder / f"{family}-{tokens}", family, model, tokens)
            if given.only_packs:
                continue
            found, seconds = run_case(model, packs, cp, changed)
            assert found.estimate is not None
            estimate, counted = found.estimate.parts.total / GIB, found.peak / GIB
            config = found.config
            saved = config.offload + ", tiles" * (config.mlp_tiles > 1) + ", turns" * (config.head_stride > 0)
            cells = [family, f"{tokens:,}", cp, config.attention, config.recompute, saved]
            figures = [f"{estimate:.1f}", f"{counted:.1f}", f"{estimate / counted:.2f}", f"{seconds:.0f}"]
            print(f"| {' | '.join([*map(str, cells), *figures])} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

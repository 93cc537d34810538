"""Prints the most memory that one rank's step takes on the CPU: plain, computed again, offloaded, in tiles.

    python tests/benchmarks/training_memory.py [--tokens 16384] [--vocabulary 151936] [--hidden 128] [--layers 8]

A model of Qwen3's kind with random weights takes one slice of documents, forward and backward, in a process of its own
for each way. Memory is what Linux counts as the peak of the process (VmHWM) above what it holds before the step, with
the model and its gradients in it; that is what CUDA would count on a device. Attention is the CPU kernel of packs. All
gradients are compared with the plain way's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np  # noqa: E402
from machine import hardware  # noqa: E402

DOCUMENT = 1024
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "computed again": {"recompute": "full"},
    "computed again but for attention": {"recompute": "selective"},
    "computed again, offloaded to a disk": {"recompute": "full", "offload": "disk"},
    "computed again, MLPs in 8 tiles": {"recompute": "full", "mlp_tiles": 8},
    "computed again, offloaded, tiled": {"recompute": "full", "offload": "disk", "mlp_tiles": 8},
}


def peak() -> int:
    """The most memory of this process so far, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure(name: str, sizes: dict[str, int]) -> dict[str, float]:
    """One step in this process."""
    import torch

    torch.set_num_threads(1)
    from preshard.schemas.layout import TokenLayout
    from preshard.schemas.sequence import MaskArrays
    from preshard.trainer.attention.bind import bind
    from preshard.trainer.attention.context_parallel import ContextParallel
    from preshard.trainer.attention.mask import MaskTensors
    from preshard.trainer.extra.saving import save_memory
    from preshard.trainer.models.interface import PACKED, register_attention
    from preshard.trainer.models.loss import loss_sum

    transformers = register_attention()
    tokens, heads = sizes["tokens"], sizes["hidden"] // 64
    config = transformers.Qwen3Config(
        vocab_size=sizes["vocabulary"], hidden_size=sizes["hidden"], intermediate_size=4 * sizes["hidden"],
        num_hidden_layers=sizes["layers"], num_attention_heads=heads, num_key_value_heads=1, head_dim=64,
        max_position_embeddings=tokens,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=PACKED).train()
    save_memory(model, **WAYS[name])
    numbers = np.arange(tokens, dtype=np.int32)
    mask = MaskArrays(
        doc_ids=numbers // DOCUMENT, branch_ids=np.zeros_like(numbers), group_ids=np.full_like(numbers, -1)
    )
    runs, needs = np.array([[0, 0, tokens]], np.int32), np.ones((1, tokens // 128), bool)
    layout = TokenLayout(scheme="contiguous", ring_degree=1, block_size=128, runs=runs, needs=needs)
    attend = bind("gather", layout, MaskTensors.from_arrays(mask), ContextParallel())
    ids = torch.from_numpy(numbers).long() * 7919 % sizes["vocabulary"]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before, began = forget_peak(), time.process_time()
    hidden = model.model(
        input_ids=ids[None],
        position_ids=torch.from_numpy(numbers % DOCUMENT).long()[None],
        use_cache=False,
        attend=attend,
        pack_length=tokens,
    ).last_hidden_state[0]
    loss = loss_sum(hidden, model.lm_head.weight, ids.roll(-1), torch.ones(tokens))
    loss.backward()
    seconds = time.process_time() - began
    squares = sum(float(p.grad.double().square().sum()) for p in model.parameters())
    return {"bytes": peak() - before, "seconds": seconds, "loss": loss.item() / tokens, "norm": squares**0.5 / tokens}


def forget_peak() -> int:
    """Lets Linux count the peak anew; returns what the process holds now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return peak()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"tokens": 16384, "vocabulary": 151936, "hidden": 128, "layers": 8}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    way = given.pop("way")
    if way is not None:
        print(json.dumps(measure(way, given)))
        return 0
    print(hardware())
    print(", ".join(f"{name} {value:,}" for name, value in given.items()), "\n")
    print("| way | peak above the model, MiB | CPU s | loss | gradient norm |\n|---|---|---|---|---|")
    found = {}
    for name in WAYS:
        options = [f"--{key}={value}" for key, value in given.items()]
        command = [sys.executable, str(Path(__file__)), "--way", name, *options]
        found[name] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        one = found[name]
        print(
            f"| {name} | {one['bytes'] / 2**20:,.0f} | {one['seconds']:.1f} | {one['loss']:.6f} | {one['norm']:.6f} |"
        )
    norms = [one["norm"] for one in found.values()]
    return 0 if max(norms) - min(norms) < 1e-4 * max(norms) else 1


if __name__ == "__main__":
    sys.exit(main())

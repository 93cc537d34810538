"""Counts what the layers of a model keep for the backward pass: numbers per token, as multiples of the model's widths.

    python tests/benchmarks/advice_memory.py

One layer more, one width doubled: the differences in the bytes that autograd saves, of tensors that are no parameters,
over those of a bfloat16 number. The memory estimates of ``preshard advise`` and of the trainer use the counts of Qwen3
and of Qwen3-VL's encoder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from machine import hardware  # noqa: E402
from torch.autograd.graph import saved_tensors_hooks  # noqa: E402

from preshard.schemas.layout import TokenLayout  # noqa: E402
from preshard.schemas.sequence import MaskArrays  # noqa: E402
from preshard.trainer.attention.bind import bind  # noqa: E402
from preshard.trainer.attention.context_parallel import ContextParallel  # noqa: E402
from preshard.trainer.attention.mask import MaskTensors  # noqa: E402
from preshard.trainer.models.interface import PACKED, register_attention  # noqa: E402

TOKENS, NUMBER_BYTES = 1024, 2
BASE = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 512,
}
WIDTHS = {
    "residual stream": ("hidden_size", 1),
    "queries": ("num_attention_heads", BASE["head_dim"]),
    "keys": ("num_key_value_heads", BASE["head_dim"]),
    "MLP": ("intermediate_size", 1),
}
"""The setting that a width follows from, and numbers for each unit of it."""


def kept_bytes(kind: Any, layers: int, sizes: dict[str, int]) -> float:
    """Bytes for each token that the decoder keeps."""
    transformers = register_attention()
    config = kind(vocab_size=256, num_hidden_layers=layers, max_position_embeddings=TOKENS, **sizes)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=PACKED)
    model = model.to(torch.bfloat16).train()
    doc_ids = np.zeros(TOKENS, np.int32)
    mask = MaskArrays(doc_ids=doc_ids, branch_ids=doc_ids, group_ids=np.full_like(doc_ids, -1))
    runs, needs = np.array([[0, 0, TOKENS]], np.int32), np.ones((1, TOKENS // 128), bool)
    layout = TokenLayout(scheme="contiguous", ring_degree=1, block_size=128, runs=runs, needs=needs)
    positions = torch.arange(TOKENS)[None]
    attend = bind("gather", layout, MaskTensors.from_arrays(mask), ContextParallel())
    given = {"position_ids": positions, "use_cache": False, "attend": attend, "pack_length": TOKENS}
    return _saved(lambda: model.model(input_ids=positions % 256, **given), model) / TOKENS


def _saved(forward: Callable[[], Any], model: torch.nn.Module) -> int:
    """Bytes that a forward pass saves for its backward pass, without parameters."""
    parameters = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        found = forward()
    assert found.last_hidden_state.requires_grad
    return sum(size for size, _ in kept.values())


VISION = {"depth": 2, "hidden_size": 256, "intermediate_size": 1024, "num_heads": 4, "deepstack_visual_indexes": [0]}
GRID = [1, 32, 32]


def kept_of_a_patch(**changed: Any) -> float:
    """Bytes for each patch that Qwen3-VL's encoder keeps."""
    transformers = register_attention()
    config = transformers.Qwen3VLConfig().vision_config
    config.update({**VISION, **changed})
    config._attn_implementation = "sdpa"
    model = transformers.models.qwen3_vl.modeling_qwen3_vl.Qwen3VLVisionModel._from_config(config)
    model = model.to(torch.bfloat16).train()
    patches = int(np.prod(GRID))
    inputs = torch.zeros(patches, 3 * config.temporal_patch_size * config.patch_size**2, dtype=torch.bfloat16)
    return _saved(lambda: model(inputs, grid_thw=torch.tensor([GRID])), model) / patches


def print_vision() -> None:
    """Prints what a layer keeps by its widths, and what makes a row of four patches, by the width of these."""
    width, inner = VISION["hidden_size"], VISION["intermediate_size"]

    def layer(**changed: Any) -> float:
        return kept_of_a_patch(depth=3, **changed) - kept_of_a_patch(**changed)

    before = layer()
    wide = (layer(hidden_size=2 * width) - before) / (width * NUMBER_BYTES)
    deep = (layer(intermediate_size=2 * inner) - before) / (inner * NUMBER_BYTES)
    row = kept_of_a_patch(deepstack_visual_indexes=[0, 1]) - kept_of_a_patch()
    print("\n| encoder of | width | MLP | row of patches |\n|---|---|---|---|")
    print(f"| qwen3_vl | {wide:.1f} | {deep:.1f} | {row / (width * NUMBER_BYTES):.1f} |")


def of_a_layer(kind: Any, **changed: int) -> float:
    sizes = {**BASE, **changed}
    return kept_bytes(kind, 2, sizes) - kept_bytes(kind, 1, sizes)


def main() -> int:
    transformers = register_attention()
    print(f"{hardware()}, torch {torch.__version__}, bfloat16\n")
    print(f"| model | {' | '.join(WIDTHS)} |\n|---|{'---|' * len(WIDTHS)}")
    for kind in (transformers.Qwen3Config, transformers.LlamaConfig):
        before = of_a_layer(kind)
        counts = [
            (of_a_layer(kind, **{name: 2 * BASE[name]}) - before) / (BASE[name] * numbers * NUMBER_BYTES)
            for name, numbers in WIDTHS.values()
        ]
        print(f"| {kind.model_type} | " + " | ".join(f"{count:.1f}" for count in counts) + " |")
    print_vision()
    return 0


if __name__ == "__main__":
    sys.exit(main())

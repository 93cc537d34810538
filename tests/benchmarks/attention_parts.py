"""Prints the processor time of attention's parts: two ways backward through one call, and ways to merge two parts.

    python tests/benchmarks/attention_parts.py [--compile]

One thread, float32, the best of several rounds. FlexAttention runs as torch's plain implementation, as it has no
backward for CPUs; its ratio counts forwards and backwards, and tells nothing of times on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.attention.flex_attention as flex
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from machine import hardware

from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention import MaskTensors
from preshard.trainer.attention.kernels import Kernel
from preshard.trainer.attention.kernels.flash_cpu import FlashCPU
from preshard.trainer.attention.kernels.flex import Flex, share
from preshard.trainer.attention.ring import merge

TOKENS, DOCUMENT = 2048, 512
MERGED = (8, 8192, 128)
"""Heads, queries and head_dim of the parts that are merged."""


def best(run: Callable[[], Any], rounds: int = 5) -> float:
    """The least processor seconds of a call."""
    least = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        run()
        least = min(least, time.process_time() - began)
    return least


def backward_of_one_call(kernel: Kernel) -> None:
    """Compares the kernel's own backward with the one for parts of the keys."""
    zero = np.zeros(TOKENS, np.int32)
    doc = (np.arange(TOKENS) // DOCUMENT).astype(np.int32)
    mask = MaskTensors.from_arrays(MaskArrays(doc_ids=doc, branch_ids=zero, group_ids=zero - 1))
    prepared = kernel.prepare(mask, mask)
    rng = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(n, TOKENS, 64, generator=rng) for n in (4, 2, 2, 4))

    def in_parts() -> Any:
        return kernel.backward(dout, q, k, v, *kernel.forward(q, k, v, prepared), prepared)

    def whole() -> Any:
        call = kernel.whole(q, k, v, prepared)
        return call.backward(dout, (q, k, v), call.saved)

    apart = max(float((a - b).abs().max()) for a, b in zip(in_parts(), whole(), strict=True))
    print(f"| {type(kernel).__name__} | {best(in_parts):.3f} | {best(whole):.3f} | {apart:.1e} |")


def out_of_place(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """The merge as it is usually written."""
    joint = torch.logaddexp(lse, more_lse)
    return share(lse, joint) * out + share(more_lse, joint) * more, joint


def merging(compiled: bool) -> None:
    """Compares ways to merge, of which compiling takes minutes before the first."""
    rng = torch.Generator().manual_seed(0)
    out, more = (torch.randn(*MERGED, generator=rng) for _ in range(2))
    lse, more_lse = (torch.randn(*MERGED[:2], generator=rng) for _ in range(2))
    print(f"| out of place | {best(lambda: out_of_place(out, lse, more, more_lse)) * 1000:.1f} |")
    if compiled:
        began = time.perf_counter()
        fused = torch.compile(out_of_place)
        fused(out, lse, more, more_lse)
        print(f"| compiled, after {time.perf_counter() - began:.0f} s | ", end="")
        print(f"{best(lambda: fused(out, lse, more, more_lse)) * 1000:.1f} |")
    print(f"| in place | {best(lambda: merge(out, lse, more, more_lse)) * 1000:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--compile", action="store_true", help="merge by torch.compile, too")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    flex._validate_device = lambda *_: None  # it refuses gradients on a CPU  # type: ignore[assignment]
    print(f"{hardware()}, torch {torch.__version__}, CPU seconds of forward and backward, {TOKENS} tokens\n")
    print("| kernel | for parts of the keys | own | apart by |\n|---|---|---|---|")
    for kernel in (Flex(attention=flex.flex_attention), FlashCPU()):
        backward_of_one_call(kernel)
    print(f"\nMerging two parts of {MERGED}, CPU ms\n\n| how | ms |\n|---|---|")
    merging(asked.compile)


if __name__ == "__main__":
    main()

"""Prints what attention costs on the CPU: the kernel against a dense mask, then every kind and layout on two processes.

    python tests/benchmarks/attention.py [--mixture mixed] [--seed 0] [--rounds 3]

One pack of 36,864 tokens, 2 query heads, 1 key head, head_dim 64, float32, one thread per process. Times are those of
the processor, forward and backward together, on the busier rank, the best of several rounds taken in turns.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mixtures
from machine import hardware

from preshard.packer_service.layout.solve import solve_layouts
from preshard.packer_service.layout.tiles import whole_tiles
from preshard.schemas.layout import SCHEMES, TILE, TokenLayout, rank_positions, slice_positions
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.gather import plan_exchange
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.core.mesh import build_mesh

HEADS, KV_HEADS, HEAD_DIM = 2, 1, 64
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("ring", "ring", {}),
    ("gather, needed keys", "gather", {"exchange": "needed"}),
    ("gather, all keys", "gather", {"exchange": "all"}),
]
ULYSSES: tuple[str, str, dict[str, Any]] = ("ulysses", "ulysses", {})


Run = Callable[[], Any]


def best(rounds: int, runs: dict[str, Run]) -> dict[str, float]:
    """The least processor seconds of each run, over rounds in which the runs take turns.

    With several ranks, those of the busier one. Waiting for another rank takes no processor time, and neither does
    other work on the machine.
    """
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            if dist.is_initialized():
                dist.barrier()
            began = time.process_time()
            run()
            seconds = torch.tensor(time.process_time() - began)
            if dist.is_initialized():
                dist.all_reduce(seconds, dist.ReduceOp.MAX)
            least[name] = min(least[name], seconds.item())
    return least


def inputs(tokens: int) -> list[Tensor]:
    """q, k, v and the output's gradient."""
    rng = torch.Generator().manual_seed(0)
    sizes = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    return [torch.randn(n, tokens, HEAD_DIM, generator=rng, requires_grad=i < 3) for i, n in enumerate(sizes)]


def there_and_back(attend: Callable[..., Tensor], tensors: list[Tensor]) -> None:
    """Forward and backward."""
    *wanted, dout = tensors
    torch.autograd.grad(attend(*wanted), wanted, dout)


def whole_layout(seq_len: int) -> TokenLayout:
    runs = np.array([[0, 0, seq_len]], np.int32)
    return TokenLayout(
        scheme="contiguous", ring_degree=1, block_size=TILE, runs=runs, needs=np.ones((1, seq_len // TILE), bool)
    )


def cut(mask: MaskArrays, length: int) -> MaskArrays:
    return MaskArrays(
        doc_ids=mask.doc_ids[:length], branch_ids=mask.branch_ids[:length], group_ids=mask.group_ids[:length]
    )


def against_dense(mask: MaskArrays, rounds: int) -> None:
    """Compares the kernel with torch's SDPA under a dense mask, on the first tokens of the pack."""
    print("\n## One process: the kernel against SDPA with a dense mask\n")
    print("| tokens | pairs allowed | tiles occupied | kernel CPU s | SDPA CPU s | SDPA / kernel |")
    print("|---|---|---|---|---|---|")
    for length in (4608, 9216):
        part, tensors = cut(mask, length), inputs(length)
        dense = torch.from_numpy(dense_mask(part))
        attend = bind("ring", whole_layout(length), MaskTensors.from_arrays(part), ContextParallel())

        def sdpa(q: Tensor, k: Tensor, v: Tensor, dense: Tensor = dense) -> Tensor:
            return torch.nn.functional.scaled_dot_product_attention(
                q[None], k[None], v[None], attn_mask=dense, enable_gqa=True
            )[0]

        runs: dict[str, Run] = {
            "ours": partial(there_and_back, attend, tensors), "theirs": partial(there_and_back, sdpa, tensors)
        }  # fmt: skip
        ours, theirs = best(rounds, runs).values()
        occupied = whole_tiles(part) / (length / TILE) ** 2
        share = float(dense.float().mean())
        print(f"| {length} | {share:.1%} | {occupied:.1%} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f} |")


def on_a_rank(rank: int, size: int, store: str, mask: MaskArrays, layouts: list[TokenLayout], rounds: int) -> None:
    """Runs every kind on every layout in one of the processes; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    ring = build_mesh("cpu", dp_replicate=1, dp_shard=1, ring_degree=size, ulysses_degree=1).cp
    ulysses = build_mesh("cpu", dp_replicate=1, dp_shard=1, ring_degree=1, ulysses_degree=size).cp
    tensors, whole, everything = MaskTensors.from_arrays(mask), whole_layout(mask.seq_len), inputs(mask.seq_len)
    alone = bind("ring", whole, tensors, ContextParallel())
    runs: dict[str, Run] = {"alone": partial(there_and_back, alone, everything)}
    rows = {}
    for layout, (name, kind, options) in [(whole, ULYSSES), *itertools.product(layouts, CALLS)]:
        cp = ulysses if layout is whole else ring
        attend = bind(kind, layout, tensors, cp, **options)
        degrees = {"ulysses_degree": cp.ulysses_degree, "ulysses_rank": cp.ulysses_rank}
        mine = rank_positions(layout.runs, ring_rank=cp.ring_rank, **degrees)
        local = [x.detach()[:, mine].requires_grad_(x.requires_grad) for x in everything]
        row = f"| {'any' if layout is whole else layout.scheme} | {name} |"
        rows[row] = moved(options, layout, tensors, size)
        runs[row] = partial(there_and_back, attend, local)
    found = best(rounds, runs)
    if rank == 0:
        alone_seconds = found.pop("alone")
        print(f"\n## {size} processes, each with half of the pack: CPU / (the whole pack in one process / {size})\n")
        print(f"{alone_seconds:.2f} s for the whole pack\n\n| layout | kind | CPU | keys moved |\n|---|---|---|---|")
        for row, seconds in found.items():
            print(f"{row} {seconds / alone_seconds * size:.2f} | {rows[row]} |")
    dist.destroy_process_group()


def moved(options: dict[str, Any], layout: TokenLayout, mask: MaskTensors, size: int) -> str:
    """Keys that ranks get from others, as a share of what an all-gather moves."""
    if "exchange" not in options:
        return "all" if layout.ring_degree > 1 else "none, heads instead"
    group: Any = object()
    got = 0
    for rank in range(size):
        cp = ContextParallel(ring_degree=size, ring_rank=rank, ring_group=group)
        positions = plan_exchange(options["exchange"], layout, mask, cp).positions
        got += len(np.setdiff1d(positions, slice_positions(layout.runs, rank)))
    return f"{got / (len(mask) * (size - 1)):.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mixture", default="mixed", choices=list(mixtures.MIXTURES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    packs = mixtures.packs(asked.mixture, 12, asked.seed)
    pack = max(packs, key=lambda pack: int(pack.mask.doc_ids.max()))
    print(f"{hardware()}, torch {torch.__version__}, CPU")
    print(f"{asked.mixture}, seed {asked.seed}: of 12 packs the one of most documents, {pack.mask.doc_ids.max() + 1}")
    layouts = solve_layouts(pack.mask, segment_edges=pack.edges, schemes=SCHEMES, ring_degrees=(2,), block_size=TILE)
    against_dense(pack.mask, asked.rounds)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(on_a_rank, args=(2, f"{folder}/store", pack.mask, layouts, asked.rounds), nprocs=2)


if __name__ == "__main__":
    main()

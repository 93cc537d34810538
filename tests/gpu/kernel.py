"""Seconds of each rank's attention in one layer, for packs dealt over 8 and 16 ranks, one rank after the other.

Heads of Qwen3-8B, bfloat16. ``gather`` and ``ring`` call the kernel with tensors of their own, as fast as it can be;
``attend`` is the trainer's whole attention, whose keys come through an exchange (``echo.py``) and lie in memory as
exchanges leave them. Beside them torch's kernels over one causal document, and tiles of other sizes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import common
import numpy as np
import torch
import torch.distributed as dist
from common import Given, Table
from echo import start_echo
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from preshard.schemas.layout import TokenLayout, layout_name
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.gather import plan_gather
from preshard.trainer.attention.kernels.flex import Flex
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.ring import plan_ring
from preshard.trainer.attention.tiles import count_occupied, list_tiles

MIXTURES = ("many-short-documents", "long-videos", "one-long-text", "annotated")
NAMES = ("beside", "layouts")
SCHEMES = ("zigzag", "contiguous", "balanced_gather", "balanced_ring")
HOW = {"gather": SCHEMES, "ring": ("zigzag", "balanced_ring"), "attend": ("balanced_gather",)}


@dataclass(kw_only=True)
class Bench:
    """Random tensors of a model's heads, and the time of calls on them."""

    given: Given
    heads: int = 32
    kv_heads: int = 8
    width: int = 128

    def __post_init__(self) -> None:
        self.device, self.repeat = self.given.device, 1 if self.given.small else 3
        self.kernel = Flex(attention=_stand_in if self.given.small else common.flex_for(self.device))
        self.dtype = torch.float32 if self.given.small else torch.bfloat16

    def draw(self, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and the gradient of the output."""
        sizes = ((self.heads, queries), (self.kv_heads, keys), (self.kv_heads, keys), (self.heads, queries))
        q, k, v, dout = (torch.randn(*size, self.width, device=self.device, dtype=self.dtype) for size in sizes)
        return q, k, v, dout

    def time(self, call: Any) -> float:
        return common.milliseconds(call, self.device, repeat=self.repeat)

    def whole(self, tiles: Any, queries: int, keys: int) -> tuple[float, float]:
        """Milliseconds forward and backward of a call over all the keys that some rows see."""
        if tiles.empty:
            return 0.0, 0.0
        q, k, v, dout = self.draw(queries, keys)
        calls = iter([self.kernel.whole(q, k, v, tiles) for _ in range(self.repeat + 1)])  # one goes backward once

        def backward() -> None:
            made = next(calls)
            made.backward(dout, (q, k, v), made.saved)

        return self.time(partial(self.kernel.whole, q, k, v, tiles)), self.time(backward)

    def part(self, tiles: Any, queries: int, keys: int) -> tuple[float, float]:
        """The same of one step of a ring, whose backward computes the forward again."""
        if tiles.empty:
            return 0.0, 0.0
        q, k, v, dout = self.draw(queries, keys)
        with torch.no_grad():
            out, lse = self.kernel.forward(q, k, v, tiles)
            forward = self.time(partial(self.kernel.forward, q, k, v, tiles))
        return forward, self.time(partial(self.kernel.backward, dout, q, k, v, out.float(), lse, tiles))

    def attend(self, attend: Any, local: int) -> tuple[float, float]:
        """The same of the trainer's attention of a layer, with q, k and v as a model's projections leave them."""
        drawn = self.draw(local, local)
        q, k, v, dout = (x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in drawn)
        with torch.no_grad():
            forward = self.time(partial(attend, q, k, v))
        both = self.time(lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), dout))
        return forward, max(both - forward, 1e-6)


def _stand_in(q: Tensor, k: Tensor, v: Tensor, *, return_aux: Any = None, **_named: Any) -> Any:
    """FlexAttention's results in a rehearsal, in which its dense matrix would not fit."""
    out = q + (k.sum() + v.sum()) * 1e-6
    return out if return_aux is None else (out, SimpleNamespace(lse=out.float().sum(-1)))


def layout_of(stored: dict[str, np.ndarray], scheme: str, ring: int) -> TokenLayout:
    runs, needs = (stored[f"{layout_name(scheme, ring)}.{of}"] for of in ("runs", "needs"))
    return TokenLayout(scheme=scheme, ring_degree=ring, block_size=128, runs=runs, needs=needs)


def layouts(bench: Bench, table: Table, seq_len: int, degrees: tuple[int, ...]) -> None:
    """The slowest rank's time under each layout."""
    for mixture in MIXTURES:
        path = bench.given.data / "layouts" / f"{mixture}-{seq_len}.npz"
        if not path.exists():
            continue
        stored = dict(np.load(path))
        arrays = {name: stored[name] for name in ("doc_ids", "branch_ids", "group_ids")}
        mask = MaskTensors.from_arrays(MaskArrays(**arrays)).to(bench.device)
        tiles = count_occupied(mask, mask)
        for ring in degrees:
            slowest: dict[tuple[str, str], float] = {}
            for how, schemes in HOW.items():
                for scheme in schemes:
                    if bench.given.over:
                        return
                    with table.row(tokens=seq_len, packs=mixture, R=ring, layout=scheme, how=how) as row:
                        times = _ranks(bench, layout_of(stored, scheme, ring), mask, how)
                        # a ring's steps wait for the slowest rank, one by one
                        forward, backward = times.max(axis=1).sum(axis=1)
                        slowest[how, scheme] = forward + backward
                        speed = 4 * 128**2 * bench.width * bench.heads * tiles / 1e9
                        by_rank, (all_forward, all_backward) = times.sum(axis=(0, 2)), times.sum(axis=(1, 2))
                        row |= {"fwd ms": forward, "bwd ms": backward, "tiles": tiles, "by rank": by_rank.tolist()}
                        row |= {"TFLOP/s fwd": speed / all_forward, "TFLOP/s bwd": 2.5 * speed / all_backward}
                        row["bwd/fwd"], row["of peak"] = all_backward / all_forward, 3.5 * speed / times.sum()
                        row["of peak"] /= table.head["peak"]
                        row["slowest/mean"] = (forward + backward) / by_rank.mean()
                        if (how, "zigzag") in slowest:
                            row["over zigzag"] = slowest[how, "zigzag"] / slowest[how, scheme]
                        row["verdict"] = "ok"


def _ranks(bench: Bench, layout: TokenLayout, mask: MaskTensors, how: str) -> np.ndarray:
    """Milliseconds (forward and backward, ranks, steps of a ring)."""
    ring, local = layout.ring_degree, len(mask) // layout.ring_degree
    found = []
    for rank in range(ring):
        cp = ContextParallel(ring_degree=ring, ring_rank=rank, ring_group=cast("Any", "no group"))
        if how == "attend":
            start_echo(rank, ring)
            try:
                group = dist.group.WORLD
                cp = ContextParallel(ring_degree=ring, ring_rank=rank, ring_group=group, cp_group=group)
                attend = bind("gather", layout, mask, cp, kernel=bench.kernel)
                found.append([bench.attend(attend, local)])
            finally:
                dist.destroy_process_group()
        elif how == "ring":
            steps = plan_ring(layout, mask, cp, kernel=bench.kernel).steps
            found.append([bench.part(tiles, local, local) for tiles in steps])
        else:
            plan = plan_gather(layout, mask, cp, kernel=bench.kernel)
            found.append([bench.whole(plan.gathered, local, len(plan.exchange.positions))])
    return np.moveaxis(np.array(found), 2, 0)


def beside(bench: Bench, table: Table, seq_len: int) -> None:
    """One causal document: torch's kernels, FlexAttention on tiles of several sizes, and a call for some heads."""
    zeros, none = np.zeros(seq_len, np.int32), np.full(seq_len, -1, np.int32)
    mask = MaskTensors.from_arrays(MaskArrays(doc_ids=zeros, branch_ids=zeros, group_ids=none)).to(bench.device)
    every = mask.at(np.arange(seq_len))
    flops = 2 * seq_len**2 * bench.width * bench.heads / 1e9

    def add(kernel: str, tile: int, measure: Any, note: str = "") -> None:
        with table.row(tokens=seq_len, kernel=kernel, tile=tile, note=note) as row:
            row["fwd ms"], row["bwd ms"] = forward, backward = measure()
            row |= {"TFLOP/s fwd": flops / forward, "TFLOP/s bwd": 2.5 * flops / backward}

    copies = bench.heads // bench.kv_heads
    q, k, v, dout = bench.draw(seq_len, seq_len)
    inputs = [x.detach().requires_grad_() for x in (q, k.repeat_interleave(copies, 0), v.repeat_interleave(copies, 0))]

    def both(call: Any, dout: Tensor) -> tuple[float, float]:
        out, forward = call(), bench.time(call)
        return forward, bench.time(lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True))

    def by_sdpa(backend: SDPBackend) -> tuple[float, float]:
        with sdpa_kernel(backend):
            attend = torch.nn.functional.scaled_dot_product_attention
            return both(lambda: attend(*(x[None] for x in inputs), is_causal=True), dout[None])

    def by_varlen() -> tuple[float, float]:
        from torch.nn.attention.varlen import varlen_attn

        edges = torch.tensor([0, seq_len], dtype=torch.int32, device=bench.device)
        given = [x.transpose(0, 1).contiguous() for x in inputs]
        # with no enable_gqa, which torch 2.10 and 2.11 do not have
        call = partial(varlen_attn, *given, edges, edges, seq_len, seq_len, window_size=(-1, 0))
        return both(call, dout.transpose(0, 1))

    backends = (SDPBackend.MATH,) if bench.given.small else (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
    for backend in backends:
        add(f"sdpa {backend.name.lower()}", 0, partial(by_sdpa, backend), "key heads copied")
    if not bench.given.small:
        add("varlen_attn", 0, by_varlen, "key heads copied")
    for tile in (128,) if bench.given.small else (128, 64, 256, 512):

        def by_flex(tile: int = tile) -> tuple[float, float]:
            listed = list_tiles(every, every, q_tile=tile, k_tile=tile).alone()
            return bench.whole(bench.kernel.prepare(every, every, listed), seq_len, seq_len)

        add("flex", tile, by_flex)
    add("flex, as a part of the keys", 128, lambda: bench.part(bench.kernel.prepare(every, every), seq_len, seq_len))


def run(given: Given) -> int:
    """Red rows: none but those that failed, as a time is neither right nor wrong."""
    torch.set_float32_matmul_precision("high")
    bench = Bench(given=given, **({"heads": 4, "kv_heads": 2, "width": 16} if given.small else {}))
    head = common.machine(given.device) | {"peak": common.peak_product(given.device)}
    columns = ["tokens", "kernel", "tile", "fwd ms", "bwd ms", "TFLOP/s fwd", "TFLOP/s bwd", "s", "note", "verdict"]
    tables = [Table(given.out / "kernel_beside.json", columns, head)]
    for seq_len in (256,) if given.small else (8192, 36_864) * ("beside" in given.chosen(NAMES)):
        beside(bench, tables[0], seq_len)
    columns = [
        *("tokens", "packs", "R", "layout", "how", "fwd ms", "bwd ms", "slowest/mean", "over zigzag", "bwd/fwd"),
        *("TFLOP/s fwd", "TFLOP/s bwd", "of peak", "s", "verdict"),
    ]
    if "layouts" not in given.chosen(NAMES):
        return tables[0].red
    ends, began = given.ends, time.monotonic()
    for number, seq_len in enumerate((4096,) if given.small else (36_864, 131_072)):
        given.ends = began + (ends - began) * (number + 1) / 2
        tables.append(Table(given.out / f"kernel_layouts_{seq_len}.json", columns, head))
        layouts(bench, tables[-1], seq_len, (8,) if given.small else (8, 16))
    return sum(table.red for table in tables)

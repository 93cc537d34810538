"""Prints where a training step's time goes on two processes, and the critical path of a ring of eight in seconds.

    python tests/benchmarks/step_parts.py [--seq-len 16384] [--mean 600] [--rounds 3]
    python tests/benchmarks/step_parts.py --device cuda     # two GPUs: the same figures by CUDA's clock

The first table trains a model of Qwen3's kind on one pack of many short documents, with each layout on the same two
processes in the same run, in turns. Attention is the time inside the kernel, forward and backward; exchange is the time
in collectives and in waiting for the other rank; data is the time until the pack has been read; the rest of the model
is what remains. Seconds are those of the slower rank, the best of the rounds.

The second table times every step of every rank of a ring of eight alone, one after the other on one core, with the CPU
kernel. Ranks wait for each other at each step, so the path is the sum over steps of the slowest rank's time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from machine import hardware  # noqa: E402

from preshard.packer_service.layout.solve import solve_layouts  # noqa: E402
from preshard.schemas.layout import TILE, TokenLayout, rank_positions, slice_positions  # noqa: E402
from preshard.schemas.sequence import MaskArrays  # noqa: E402
from preshard.trainer.attention import MaskTensors, bind  # noqa: E402
from preshard.trainer.attention.kernels import kernel_for  # noqa: E402
from preshard.trainer.attention.kernels.whole import Whole  # noqa: E402
from preshard.trainer.distributed.mesh import build_mesh  # noqa: E402

LAYOUTS = ("contiguous", "zigzag", "balanced_ring", "balanced_gather")
KIND = {"balanced_gather": "gather"}
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 256, 4, 4, 2, 64, 32_000
ALIGNED = 16
"""Documents are padded to this, twice the largest ring degree, which zigzag needs."""

COLLECTIVES = ("all_gather_single", "all_to_all_single", "batch_isend_irecv", "all_gather_into_tensor", "all_reduce")


def make_mask(seq_len: int, mean: int, seed: int) -> MaskArrays:
    """Documents of log-normal lengths, one after the other; the last one fills the pack."""
    lengths = np.clip(np.random.default_rng(seed).lognormal(np.log(mean), 1.0, seq_len), 16, seq_len).astype(int)
    lengths = -(-lengths // ALIGNED) * ALIGNED
    doc_ids = np.repeat(np.arange(len(lengths)), lengths)[:seq_len].astype(np.int32)
    return MaskArrays(doc_ids=doc_ids, branch_ids=np.zeros_like(doc_ids), group_ids=np.full_like(doc_ids, -1))


def layouts_of(mask: MaskArrays, ring_degree: int) -> list[TokenLayout]:
    edges = np.flatnonzero(np.diff(mask.doc_ids, prepend=-1, append=-1)).astype(np.int64)
    solved = solve_layouts(mask, segment_edges=edges, schemes=LAYOUTS, ring_degrees=(ring_degree,), block_size=TILE)
    return sorted(solved, key=lambda layout: LAYOUTS.index(layout.scheme))


class Clock:
    """Seconds spent in each part, by CUDA's clock where there is one. Parts inside a part do not count twice."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds = device, defaultdict(float)
        self._inside = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        before, self._inside = self._inside, 0.0
        began = self._now()
        yield
        whole = self._now() - began
        self.seconds[name] += whole - self._inside
        self._inside = before + whole

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return timed


class TimedKernel:
    """A kernel whose calls count as attention."""

    def __init__(self, kernel: Any, clock: Clock) -> None:
        self._kernel, self._clock = kernel, clock
        self.prepare = kernel.prepare
        self.forward = clock.around("attention", kernel.forward)
        self.backward = clock.around("attention", kernel.backward)

    def whole(self, *inputs: Any) -> Whole:
        with self._clock.part("attention"):
            found: Whole = self._kernel.whole(*inputs)
        return replace(found, backward=self._clock.around("attention", found.backward))


def on_a_rank(rank: int, size: int, folder: str, device: str, mask: MaskArrays, steps: int) -> None:
    """Trains with each layout in turn; rank 0 prints."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=rank, world_size=size)
    mesh = build_mesh(device, dp_replicate=1, dp_shard=1, ring_degree=size, ulysses_degree=1)
    model = _model(mask.seq_len, device)
    found: dict[str, dict[str, float]] = {}
    for _ in range(steps):
        for layout in layouts_of(mask, size):
            clock = Clock(device)
            _step(model, mask, layout, mesh.cp, clock)
            names = ("attention", "rest of the model", "exchange", "data")
            seconds = torch.tensor([clock.seconds[name] for name in names], dtype=torch.float64)
            every = [torch.empty_like(seconds) for _ in range(size)]
            dist.all_gather(every, seconds)
            slowest = torch.stack(every).amax(0).tolist()
            best = found.setdefault(layout.scheme, dict.fromkeys(names, float("inf")))
            found[layout.scheme] = {name: min(best[name], now) for name, now in zip(names, slowest, strict=True)}
    if rank == 0:
        print("| layout | attention | rest of the model | exchange, waiting | data |\n|---|---|---|---|---|")
        for scheme, parts in found.items():
            print(f"| {scheme} ({KIND.get(scheme, 'ring')}) | " + " | ".join(f"{s:.3f}" for s in parts.values()) + " |")
    dist.destroy_process_group()


def _model(seq_len: int, device: str) -> Any:
    from preshard.trainer.models.interface import PACKED, register_attention

    transformers = register_attention()
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=3 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=seq_len,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=PACKED)
    return model.to(device).train()


def _step(model: Any, mask: MaskArrays, layout: TokenLayout, cp: Any, clock: Clock) -> None:
    from preshard.trainer.models.loss import loss_sum

    with clock.part("data"):
        tensors = MaskTensors.from_arrays(mask).to(torch.device(clock.device))
        mine = rank_positions(layout.runs, ring_rank=cp.ring_rank, ulysses_degree=1, ulysses_rank=0)
        ids = torch.from_numpy(mine * 7919 % VOCABULARY).to(clock.device)
        starts = np.searchsorted(mask.doc_ids, mask.doc_ids)
        positions = torch.from_numpy((np.arange(mask.seq_len) - starts)[mine]).to(clock.device)
    kernel: Any = TimedKernel(kernel_for(clock.device), clock)
    timed = [patch.object(dist, name, clock.around("exchange", getattr(dist, name))) for name in COLLECTIVES]
    work = type(dist.barrier(async_op=True))
    with clock.part("rest of the model"), patch.object(work, "wait", clock.around("exchange", work.wait)):
        for each in timed:
            each.start()
        attend = bind(KIND.get(layout.scheme, "ring"), layout, tensors, cp, kernel=kernel)
        hidden = model.model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, attend=attend, pack_length=mask.seq_len
        ).last_hidden_state[0]
        loss_sum(hidden, model.lm_head.weight, ids.roll(-1), torch.ones(len(ids), device=ids.device)).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad = None
        for each in timed:
            each.stop()


def ring_of_eight(mask: MaskArrays, rounds: int) -> None:
    """Every step of every rank alone; the critical path is the sum of each step's slowest rank."""
    kernel, tensors, ring = kernel_for("cpu"), MaskTensors.from_arrays(mask), 8
    generator = torch.Generator().manual_seed(0)
    print("| layout | critical path, s | sum over ranks / 8, s | path / balanced_ring's |\n|---|---|---|---|")
    paths: dict[str, tuple[float, float]] = {}
    for layout in layouts_of(mask, ring):
        slices = [tensors.at(slice_positions(layout.runs, rank)) for rank in range(ring)]
        seconds = np.zeros((ring, ring))
        for rank in range(ring):
            local = len(slices[rank].doc_ids)
            q, k, v = (torch.randn(n, local, HEAD_DIM, generator=generator) for n in (HEADS, KV_HEADS, KV_HEADS))
            for step in range(ring):
                prepared = kernel.prepare(slices[rank], slices[(rank - step) % ring])
                if not prepared.empty:
                    seconds[rank, step] = _alone(kernel, q, k, v, prepared, rounds)
        paths[layout.scheme] = float(seconds.max(0).sum()), float(seconds.sum() / ring)
    for scheme, (path, mean) in paths.items():
        print(f"| {scheme} | {path:.3f} | {mean:.3f} | {path / paths['balanced_ring'][0]:.2f} |")


def _alone(kernel: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prepared: Any, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        out, lse = kernel.forward(q, k, v, prepared)
        kernel.backward(out, q, k, v, out, lse, prepared)
        best = min(best, time.process_time() - began)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq-len", type=int, default=16384)
    parser.add_argument("--mean", type=int, default=600, help="tokens of a document, at the median")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    if given.device == "cuda" and torch.cuda.device_count() < 2:
        print(
            f"{torch.cuda.device_count()} CUDA devices here; the first table needs 2, and prints the same figures there"
        )
        return 2
    torch.set_num_threads(1)
    mask = make_mask(given.seq_len, given.mean, given.seed)
    print(f"{hardware()}, torch {torch.__version__}, {given.device}")
    print(f"{given.seq_len:,} tokens, {int(mask.doc_ids.max()) + 1} documents\n")
    print(f"A step of {LAYERS} layers on two processes, seconds of the slower one:\n")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (2, folder, given.device, mask, given.rounds)
        torch.multiprocessing.spawn(on_a_rank, args=arguments, nprocs=2)
    if given.device == "cpu":
        print("\nAttention of one layer on a ring of eight, forward and backward, each step timed alone:\n")
        ring_of_eight(mask, given.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())

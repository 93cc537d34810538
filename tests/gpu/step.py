"""The step of one rank of 8 of Qwen3-VL-8B, by the trainer's own functions; the other ranks echo (``echo.py``).

Peak memory beside the estimate and the dry run, seconds beside those of ``preshard advise``, and one profiled step:
when no kernel runs, where the host waits, what is copied from memory that is not page-locked.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common
import torch
import torch.distributed as dist
from common import Given, Table
from echo import start_echo
from torch.distributed.tensor import DTensor

from preshard.trainer.core.config import TrainConfig
from preshard.trainer.core.objective import NextToken, exchanges_of
from preshard.trainer.core.optimizer import make_optimizer
from preshard.trainer.core.processes import let_segments_grow
from preshard.trainer.core.setup import make_mesh, prepare
from preshard.trainer.core.step import Totals, apply_gradients, join_totals
from preshard.trainer.extra.work import StepWork
from preshard.trainer.models.interface import unwrap
from preshard.trainer.train import add_gradients, build_model, read_batches

GIB = 2**30
CASES: dict[str, dict[str, Any]] = {
    "selective": {"recompute": "selective"},
    "none": {"recompute": "none"},
    "selective, plain": {"recompute": "selective", "compile": False},
    "ring": {"recompute": "selective", "attention": "ring", "layout": "balanced_ring"},
    "ulysses": {"recompute": "selective", "attention": "ulysses", "ulysses": 8, "ring": 1},
    "full, host": {"recompute": "full", "offload": "host"},
    "turns": {"recompute": "selective", "head_stride": 2},
    "overlap": {"recompute": "selective", "overlap": True},
    "full": {"recompute": "full"},
    "zigzag": {"recompute": "selective", "layout": "zigzag"},
    "selective, state": {"recompute": "selective", "offload": "state"},
    "all, tiles": {"recompute": "full", "offload": "all", "mlp_tiles": 8, "logits_mib": 256},
    "none, plain": {"recompute": "none", "compile": False},
}
"""Cases in the order in which they are worth most."""
NAMES = tuple(CASES)

BEYOND = 1.12
"""Peak memory over the estimate from which a row is red. A leak of outputs showed as 1.37, and as nothing else."""

STEPS = 4
HOST_CALLS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMalloc", "cudaFree")
ANNOTATIONS = ("FSDP::", "Optimizer.", "ProfilerStep", "##")
"""Names that the profiler lists on the device beside kernels: ranges with names, spanning gaps between kernels."""

KINDS_OF_KERNELS = {
    "flex": ("flex",),
    "attention, other": ("flash", "fmha", "attention"),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "splitk"),
    "triton": ("triton",),
    "optimizer": ("multi_tensor", "adam"),
}


def config_of(folder: Path, case: dict[str, Any], *, device: str, ring: int = 8, **more: Any) -> TrainConfig:
    """A case of a model and packs that lie in ``folder``."""
    given = {"data": str(folder / "dataset"), "model": folder / "model", "steps": 10, "lr": 1e-5, "device": device}
    given |= {"from_scratch": True, "memory_check": "off", "ring": ring, "layout": "balanced_gather"}
    if case.get("attention") == "ulysses":
        del given["layout"]
    return TrainConfig.model_validate(given | case | more)


class RankStep:
    """One rank of a job, with random weights, and its steps."""

    def __init__(self, config: TrainConfig, rank: int, world: int, device: torch.device) -> None:
        self.job = prepare(config, rank=rank, world_size=world, device_type=device.type)
        self.device, self.mesh = device, make_mesh(self.job.config, world, device.type)
        self.model = build_model(self.job, self.mesh, device, weights="none")
        _fill(self.model)
        self.optimizer = make_optimizer(self.model, lr=self.job.config.largest_lr)
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.work = StepWork.of(unwrap(self.model.inner))

    def batches(self) -> Iterator[Any]:
        return read_batches(self.job, self.model, self.mesh, self.device)

    def run(self, batches: Iterator[Any]) -> Totals:
        config = self.job.config
        objective = NextToken(**exchanges_of(config))
        local, _ = add_gradients(self.model, objective, batches, self.mesh, self.work, packs=config.accumulate)
        cp_size = self.mesh.cp.cp_size
        totals = join_totals(local, self.parameters, replica=self.mesh.replica, cp_size=cp_size, stop=False)
        apply_gradients(self.optimizer, self.parameters, totals, lr=1e-6, clip=1.0)
        common.wait_for(self.device.type)
        return totals


@torch.no_grad()
def _fill(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if parameter.ndim >= 2:
            local.normal_(0, 0.02)
        else:
            local.fill_(float("norm" in name and name.endswith("weight")))


@contextmanager
def one_rank(given: Given) -> Iterator[tuple[Path, torch.device, int, int]]:
    """The folder of model and packs, the device, the rank and how many there are, with the echoing group."""
    let_segments_grow()  # before the first tensor
    folder = given.data / ("families/qwen3_vl" if given.small else "large")
    world = 2 if given.small else 8
    expected = folder / "expected.json"
    rank = json.loads(expected.read_text())["selective"]["rank"] if expected.exists() else 0  # the fullest
    start_echo(rank, world)
    try:
        yield folder, torch.device(given.device), rank, world
    finally:
        dist.destroy_process_group()


def case_in_small(case: dict[str, Any]) -> dict[str, Any] | None:
    """A case as a CPU can rehearse it; None if it cannot."""
    if "offload" in case or case.get("head_stride"):
        return None
    degrees = {"ulysses": 2} if "ulysses" in case else {}
    return case | degrees | {"compile": False, "dtype": "float32"}


def check_memory(peak: float, estimate: float) -> str:
    """The verdict on a peak."""
    return "ok" if peak <= BEYOND * estimate else f"PEAK {peak:.1f} GiB, {peak / estimate:.2f} of the estimate"


def run(given: Given) -> int:
    """Red rows."""
    columns = [
        *("case", "s a step", "advise", "over advise", "MFU", "peak GiB", "estimate", "dry run", "over estimate"),
        *("busy", "idle ms", "waits", "pageable", "first s", "s", "verdict"),
    ]
    with one_rank(given) as (folder, device, rank, world):
        head, peak = common.machine(given.device), common.peak_product(given.device)
        table = Table(given.out / "step.json", columns, head | {"rank": rank, "world": world, "peak": peak})
        known = folder / "expected.json"
        expected = json.loads(known.read_text()) if known.exists() else {}
        for name, case in CASES.items():
            wanted = case_in_small(case) if given.small else case
            if wanted is None or name not in given.chosen(CASES):
                continue
            if given.over:
                break
            with table.row(case=name) as row:
                config = (
                    config_of(folder, wanted, device=given.device, ring=world)
                    if "ring" not in wanted
                    else (config_of(folder, wanted, device=given.device))
                )
                _measure(RankStep(config, rank, world, device), expected.get(name, {}), peak, row, given)
            gc.collect()  # the model's circles, before the next one is built
    return table.red


def _measure(step: RankStep, expected: dict[str, float], peak: float, row: dict[str, Any], given: Given) -> None:
    on_card = given.device == "cuda"
    batches = itertools.cycle([next(step.batches())])
    began = time.perf_counter()
    step.run(batches)
    row["first s"] = time.perf_counter() - began
    if on_card:
        step.run(batches)
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(STEPS if on_card else 1):
        began = time.perf_counter()
        totals = step.run(batches)
        times.append(time.perf_counter() - began)
    seconds = row["s a step"] = statistics.median(times)
    row["MFU"] = totals.work[0] / seconds / 1e12 / peak
    row |= {
        "times": times,
        "loss": totals.loss_sum / totals.loss_weight if totals.loss_weight else None,  # a rank may hold none
        "grad norm": totals.grad_norm,
        "verdict": "ok",
    }
    row |= {name: value for name, value in expected.items() if name in ("advise", "dry run") and value}
    if row.get("advise"):
        row["over advise"] = seconds / row["advise"]
    if on_card and step.job.memory is not None:
        row["estimate"], row["peak GiB"] = step.job.memory.parts.total / GIB, torch.cuda.max_memory_allocated() / GIB
        row["over estimate"] = row["peak GiB"] / row["estimate"]
        row["verdict"] = check_memory(row["peak GiB"], row["estimate"])
    row["places"] = waits(step, batches) if on_card else {}
    row["profile"] = profile(step, batches)
    row |= {name: row["profile"][name] for name in ("busy", "idle ms", "pageable")}
    row["waits"] = sum(row["places"].values())


def profile(step: RankStep, batches: Iterator[Any]) -> dict[str, Any]:
    """Time of the device and the host in one step, in milliseconds."""
    activities = {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}
    with torch.profiler.profile(activities=activities & torch.profiler.supported_activities()) as profiler:
        step.run(batches)
    raw: Any = profiler.profiler
    events = [
        (each.name(), each.start_ns(), each.duration_ns(), str(each.device_type()))
        for each in raw.kineto_results.events()
    ]
    return summary(events)


def summary(events: list[tuple[str, int, int, str]]) -> dict[str, Any]:
    """Figures of what a profiler saw: name, start and duration in ns, and device of each event."""
    kernels: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    host: Counter[str] = Counter()
    spans = []
    for name, start, duration, device in events:
        if "CUDA" not in device:
            host.update({name: 1, f"{name} ms": duration / 1e6} if name in HOST_CALLS else {})
        elif not name.startswith(ANNOTATIONS):
            spans.append((start, start + duration))
            (copies if name.startswith(("Memcpy", "Memset")) else kernels)[name] += duration / 1e6
    busy, idle, last = 0.0, [], min((start for start, _ in spans), default=0)
    for start, end in sorted(spans):
        if start > last:
            idle.append((start - last) / 1e6)
        busy += max(0, end - max(start, last)) / 1e6
        last = max(last, end)
    of_kind = dict.fromkeys([*KINDS_OF_KERNELS, "other"], 0.0)
    for name, taken in kernels.items():
        kinds = (kind for kind, marks in KINDS_OF_KERNELS.items() if any(mark in name.lower() for mark in marks))
        of_kind[next(kinds, "other")] += taken
    return {
        "busy": busy / max(busy + sum(idle), 1e-9),
        "idle ms": sum(idle),
        "gaps over 0.1 ms": sum(gap > 0.1 for gap in idle),
        "pageable": sum(taken for name, taken in copies.items() if "Pageable" in name),
        "kernel kinds": of_kind,
        "kernels": {name[:70]: taken for name, taken in kernels.most_common(25)},
        "copies": dict(copies.most_common(12)),
        "host": dict(host),
    }


def waits(step: RankStep, batches: Iterator[Any]) -> dict[str, int]:
    """Lines of the trainer at which a step makes the host wait, by torch's own warnings."""
    found: Counter[str] = Counter()

    def note(message: Any, _category: Any, _file: str, _line: int, *_: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            ours = (each for each in reversed(traceback.extract_stack()) if "/trainer/" in each.filename)
            found[next((f"{Path(each.filename).name}:{each.lineno}" for each in ours), "elsewhere")] += 1

    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            step.run(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return dict(found)

"""Prints what advice says of three kinds of packs, and whether two processes on CPUs take their time in that order.

    python tests/benchmarks/advice.py              # the advice for 64 H100
    python tests/benchmarks/advice.py --derived    # how far loads derived from a few masks are from those of all packs
    python tests/benchmarks/advice.py --measure [--seq-len 8192] [--rounds 3]

The last form trains a model of Qwen3's kind with every split over two processes. Other work on the machine must not
decide the order, so times are processor time on the critical path: each process has a clock of the processor time that
it took, and what waits for another process sets its clock to the later one (Lamport 1978). The speeds of products, of
the attention kernel and of messages are measured first, on other packs, and given to the advice as assumptions. Vision
is left out: two processes share the images alike in every split.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import torch  # noqa: E402
from advice_packs import KINDS, MadePack, loads_of, made_packs  # noqa: E402
from advice_ranks import (  # noqa: E402
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    RANKS,
    VOCABULARY,
    Counted,
    Splits,
    Step,
    made_model,
    on_a_rank,
)
from machine import hardware  # noqa: E402

from preshard.packer_service.layout.mask import MaskIndex  # noqa: E402
from preshard.packer_service.layout.tiles import whole_tiles  # noqa: E402
from preshard.packer_service.report.advice.answer import Advisor  # noqa: E402
from preshard.packer_service.report.advice.estimate.derived import PackMask, with_derived  # noqa: E402
from preshard.packer_service.report.advice.estimate.loads import PackLoads, SlowestRank  # noqa: E402
from preshard.packer_service.report.advice.model import configured_sizes  # noqa: E402
from preshard.packer_service.report.advice.question import AdviceQuestion, make_question  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.model.dimensions import ModelDimensions  # noqa: E402
from preshard.trainer.attention.context_parallel import ContextParallel  # noqa: E402
from preshard.trainer.attention.kernels import kernel_for  # noqa: E402

PACKS = 2


def measured_config(seq_len: int) -> PackConfig:
    return PackConfig(seq_len=seq_len, ring_degrees=(1, RANKS), cp_sizes=(1, RANKS))


def model_sizes() -> ModelDimensions:
    return ModelDimensions(
        hidden=HIDDEN, layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, value_dim=HEAD_DIM,
        vocab=VOCABULARY, inner=3 * HIDDEN, stored_inner=3 * HIDDEN, tied=False, vision_parameters=0, vision_width=0,
        vision_layers=0, source="the script",
    )  # fmt: skip


def kernel_speeds(config: PackConfig, rounds: int) -> dict[str, float]:
    """Assumptions from one process: products per second around attention, and the kernel's speed and backward pass."""
    packs = [made_packs(kind, config, 1, seed=99)[0] for kind in KINDS]
    model, sizes = made_model(config.seq_len), model_sizes()
    total = dict.fromkeys(("forward", "backward", "rest"), 0.0)
    for pack in packs:
        best: dict[str, float] = {}
        for _ in range(rounds):
            kernel = Counted(kernel_for("cpu"))
            step = Step.of(pack, (1, 1, "contiguous", "none"), ContextParallel(), kernel)
            began = time.process_time()
            step.run(model)
            taken = time.process_time() - began
            parts = {**kernel.seconds, "rest": taken - sum(kernel.seconds.values())}
            best = {name: min(best.get(name, float("inf")), value) for name, value in parts.items()}
        total = {name: total[name] + best[name] for name in total}
    tiles = sum(whole_tiles(MaskIndex.of(pack.mask)) for pack in packs) * sizes.tile_flops
    products = len(packs) * 2 * config.seq_len * (3 * LAYERS * sizes.layer_products + 4 * sizes.head_products)
    return {
        "peak_tflops": products / total["rest"] / 1e12,
        "attention_efficiency": tiles / total["forward"] / (products / total["rest"]),
        "attention_backward": total["backward"] / total["forward"],
    }


def question_of(speeds: dict[str, float], link: tuple[float, float]) -> AdviceQuestion:
    efficiency = speeds["attention_efficiency"]
    peak = speeds["peak_tflops"] * max(efficiency, 1.0)
    return make_question(
        {
            "gpus": RANKS, "gpu": "cpu", "peak_tflops": peak, "linear_efficiency": min(1 / efficiency, 1.0),
            "attention_efficiency": min(efficiency, 1.0), "attention_backward": speeds["attention_backward"],
            "ring_backward": speeds["attention_backward"], "node_gb_per_s": link[0] / 1e9, "link_efficiency": 1.0,
            "latency_us": link[1] * 1e6, "compute_bytes": 4, "sum_bytes": 4, "recompute": "none", "memory_gb": 1e6,
        }
    )  # fmt: skip


def measure(seq_len: int, rounds: int) -> int:
    torch.set_num_threads(1)
    config = measured_config(seq_len)
    kinds = {kind: made_packs(kind, config, PACKS) for kind in KINDS}
    speeds = kernel_speeds(config, rounds)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(on_a_rank, args=(folder, config, kinds, rounds), nprocs=RANKS)
        measured = json.loads(Path(folder, "found.json").read_text())
    question = question_of(speeds, measured["link"])
    print(f"{seq_len:,} tokens, {LAYERS} layers of {HIDDEN}, {HEADS} heads; {RANKS} processes, {PACKS} packs each kind")
    assumed = (*speeds, "linear_efficiency", "node_gb_per_s", "latency_us")
    print("assumed: " + ", ".join(f"{name} {getattr(question, name):.3g}" for name in assumed))
    wrong = 0
    for kind, packs in kinds.items():
        loads = loads_of(packs, config, RANKS, frame_load=0)
        advisor = Advisor(config=config, sizes=model_sizes(), question=question, loads=loads)
        predicted = {
            (each.ulysses_degree, each.ring_degree, each.layout, each.kind): each.seconds.total * PACKS / each.dp_size
            for each in advisor.estimates()
        }
        wrong += print_order(kind, predicted, {tuple(row[:4]): row[4] for row in measured["found"][kind]})
    return wrong


def print_order(kind: str, predicted: Splits, measured: Splits) -> int:
    """Prints both times, and returns how many pairs of splits stand in another order than they should."""
    print(f"\n{kind}\n\n| U | R | layout | attention | predicted s | measured s | ratio |\n|{'---|' * 7}")
    for split in sorted(predicted, key=lambda split: predicted[split]):
        values = f"{predicted[split]:.3f} | {measured[split]:.3f} | {measured[split] / predicted[split]:.2f}"
        print(f"| {' | '.join(map(str, split))} | {values} |")
    ordered = [(a, b) for a in predicted for b in predicted if predicted[a] < predicted[b]]
    pairs = [(a, b) for a, b in ordered if apart(measured[a], measured[b])]
    wrong = [(a, b) for a, b in pairs if measured[a] > measured[b]]
    best = min(measured, key=lambda split: measured[split])
    first = min(predicted, key=lambda split: predicted[split])
    print(
        f"\n{len(pairs) - len(wrong)} of {len(pairs)} pairs that are measured 5% apart stand in the predicted order; "
        f"what is predicted to be the fastest takes {measured[first] / measured[best]:.2f} x the time of what is"
    )
    return len(wrong)


def apart(one: float, other: float) -> bool:
    return abs(one - other) > 0.05 * max(one, other)


def print_advice_of_kinds(gpus: int) -> None:
    """The advice for H100s and the default model."""
    config = PackConfig()
    sizes = configured_sizes(config.cost, config.vision, None, "default")
    question = make_question({"gpus": gpus, "limit": 3})
    for kind in KINDS:
        packs = made_packs(kind, config, gpus)
        loads = loads_of(packs, config, gpus)
        advice = Advisor(config=config, sizes=sizes, question=question, loads=loads).advice()
        print(f"\n{kind}: {advice.considered} splits, {advice.fitting} fit")
        for split in [*advice.splits, *([advice.cp1] if advice.cp1 else [])]:
            print(
                f"  U {split.ulysses_degree} R {split.ring_degree} {split.layout} {split.kind} dp {split.dp_size} "
                f"recompute {split.recompute}: {split.tokens_per_second:,.0f} tokens/s each, "
                f"{split.memory.total:.1f} GB, over zigzag {split.speedup_over_zigzag or 0:.2f}, "
                f"over cp 1 {split.speedup_over_cp1 or 0:.2f}\n    {split.reason}"
            )


def print_derived(number: int) -> None:
    """Prints the error of mean loads of `contiguous` derived from some masks, against those of all packs, by kind."""
    config = PackConfig(layouts=("contiguous", "zigzag"))  # defined, so that packing searches for nothing
    place = "contiguous", max(config.ring_degrees)
    print("\n| packs | masks | gather path | ring path | keys | CPU time |\n|---|---|---|---|---|---|")
    for kind in KINDS:
        packs = made_packs(kind, config, number)
        stored = loads_of(packs, config, place[1])
        derived, taken = derived_loads(packs, stored, config, place[1])
        errors = errors_of(derived.layouts[place], stored.layouts[place])
        said = " | ".join(f"{100 * error:+.1f}%" for error in errors)
        print(f"| {kind} | {derived.masks} of {number} | {said} | {taken:.2f} s |")
    print(f"\nmeans over packs of {config.seq_len:,} tokens, {place[0]} at ring degree {place[1]}")


def derived_loads(packs: list[MadePack], stored: PackLoads, config: PackConfig, gpus: int) -> tuple[PackLoads, float]:
    """The loads as if no layout with a definition had been packed, and the processor time that deriving them took."""
    unpacked = config.model_copy(update={"layouts": ("balanced_ring",)})
    masks = [PackMask(MaskIndex.of(pack.mask), pack.edges) for pack in packs]
    began = time.process_time()
    derived = with_derived(replace(stored, layouts={}), unpacked, gpus, masks.__getitem__)
    return derived, time.process_time() - began


def errors_of(found: SlowestRank, exact: SlowestRank) -> tuple[float, ...]:
    """Relative errors of the means of gather path, ring path and keys."""
    pairs = (
        (found.gather_path, exact.gather_path),
        (found.ring_steps.sum(axis=0), exact.ring_steps.sum(axis=0)),
        (found.most_keys, exact.most_keys),
    )
    return tuple(float(one.mean()) / max(float(other.mean()), 1.0) - 1 for one, other in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="time every split on two processes")
    parser.add_argument("--derived", action="store_true", help="print the errors of derived layouts alone")
    parser.add_argument("--seq-len", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=64)
    given = parser.parse_args()
    print(f"{hardware()}, torch {torch.__version__}")
    if given.measure:
        return min(measure(given.seq_len, given.rounds), 1)
    if given.derived:
        print_derived(given.gpus)
        return 0
    print_advice_of_kinds(given.gpus)
    print_derived(given.gpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())

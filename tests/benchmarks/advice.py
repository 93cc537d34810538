"""Prints what advice says of three kinds of packs, and whether two processes on CPUs take their time in that order.

    python tests/benchmarks/advice.py                       # the advice for 64 H100, and how long a million packs take
    python tests/benchmarks/advice.py --measure [--seq-len 8192] [--rounds 3]

The second form trains a model of Qwen3's kind with every split over two processes. Other work on the machine must not
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from advice_packs import KINDS, MadePack, loads_of, made_packs  # noqa: E402
from machine import hardware  # noqa: E402

from packer_service.layout.mask import MaskIndex  # noqa: E402
from packer_service.layout.solve import solve_layouts  # noqa: E402
from packer_service.layout.tiles import whole_tiles  # noqa: E402
from packer_service.report.advice.answer import Advisor  # noqa: E402
from packer_service.report.advice.model import ModelSizes, configured_sizes  # noqa: E402
from packer_service.report.advice.question import AdviceQuestion, make_question  # noqa: E402
from schemas.config import PackConfig  # noqa: E402
from schemas.layout import TILE, rank_positions  # noqa: E402
from trainer.attention import MaskTensors, bind  # noqa: E402
from trainer.attention.kernels import kernel_for  # noqa: E402
from trainer.attention.kernels.whole import Whole  # noqa: E402
from trainer.distributed.mesh import ContextParallel, build_mesh  # noqa: E402
from trainer.models.loss import loss_sum  # noqa: E402

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 128, 1, 4, 2, 64, 2048
RANKS, PACKS = 2, 2
COLLECTIVES = ("all_gather_single", "all_to_all_single", "all_gather_into_tensor", "all_reduce")
MESSAGE = 1 << 20

Splits = dict[tuple[int, int, str, str], float]


def measured_config(seq_len: int) -> PackConfig:
    return PackConfig(seq_len=seq_len, ring_degrees=(1, RANKS), cp_sizes=(1, RANKS))


class PathClock:
    """Processor time on the critical path of a process and those it waited for."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.restart()

    def restart(self) -> None:
        self.seconds, self._last = 0.0, time.process_time()

    def read(self) -> float:
        now = time.process_time()
        self.seconds, self._last = self.seconds + now - self._last, now
        return self.seconds

    def latest(self) -> float:
        """The latest clock of all processes, which takes no time."""
        mine = torch.tensor([self.read()], dtype=torch.float64)
        every = [torch.empty_like(mine) for _ in range(RANKS)]
        dist.all_gather(every, mine, group=self._group)
        self._last = time.process_time()
        return float(max(every))

    def wait_until(self, moment: float) -> None:
        self.seconds = max(self.read(), moment)

    @contextmanager
    def over_collectives(self) -> Iterator[None]:
        """Collectives wait for the latest process, and the end of a ring's step for both to have sent."""
        hop = dist.batch_isend_irecv

        def collective(function: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*args: Any, **kwargs: Any) -> Any:
                self.wait_until(self.latest())
                return function(*args, **kwargs)

            return timed

        def hopping(operations: Any) -> Any:
            moment = self.latest()
            return [Sent(work, moment, self) for work in hop(operations)]

        with ExitStack() as stack:
            for name in COLLECTIVES:
                stack.enter_context(patch.object(dist, name, collective(getattr(dist, name))))
            stack.enter_context(patch.object(dist, "batch_isend_irecv", hopping))
            yield


class Sent:
    """A message on its way, which has arrived at the earliest when both processes had sent."""

    def __init__(self, work: Any, moment: float, clock: PathClock) -> None:
        self._work, self._moment, self._clock = work, moment, clock

    def wait(self) -> None:
        self._work.wait()
        self._clock.wait_until(self._moment)


class Counted:
    """A kernel that adds up its processor time, forward and backward apart."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self.prepare, self.seconds = kernel, kernel.prepare, {"forward": 0.0, "backward": 0.0}

    def forward(self, *inputs: Any) -> Any:
        return self._timed("forward", self._kernel.forward, inputs)

    def backward(self, *inputs: Any) -> Any:
        return self._timed("backward", self._kernel.backward, inputs)

    def whole(self, q: Any, k: Any, v: Any, tiles: Any) -> Whole:
        out, lse = self.forward(q, k, v, tiles)

        def backward(dout: Any, inputs: Any, saved: Any) -> Any:
            return self.backward(dout, *inputs, *saved, tiles)

        return Whole(out=out, saved=(out, lse), backward=backward)

    def _timed(self, name: str, function: Callable[..., Any], inputs: Any) -> Any:
        began = time.process_time()
        found = function(*inputs)
        self.seconds[name] += time.process_time() - began
        return found


def made_model(seq_len: int) -> Any:
    from trainer.models.interface import PACKED, register_attention

    transformers = register_attention()
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=3 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=seq_len,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=PACKED).train()


def model_sizes() -> ModelSizes:
    return ModelSizes(
        hidden=HIDDEN, layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, vocab=VOCABULARY,
        inner=3 * HIDDEN, stored_inner=3 * HIDDEN, tied=False, vision_parameters=0, vision_width=0, vision_layers=0,
        source="the script",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Step:
    """One rank's part of a pack. What is prepared once for all layers is prepared before the clock starts."""

    ids: torch.Tensor
    positions: torch.Tensor
    attend: Any
    seq_len: int

    @classmethod
    def of(cls, pack: MadePack, split: tuple[int, int, str, str], cp: Any, kernel: Any = None) -> Step:
        ulysses, ring, scheme, kind = split
        [layout] = solve_layouts(
            pack.mask, segment_edges=pack.edges, schemes=(scheme,), ring_degrees=(ring,), block_size=TILE
        )
        mine = rank_positions(layout.runs, ring_rank=cp.ring_rank, ulysses_degree=ulysses, ulysses_rank=cp.ulysses_rank)
        name = "gather" if kind == "none" else kind
        return cls(
            ids=torch.from_numpy(mine * 7919 % VOCABULARY),
            positions=torch.from_numpy(mine),
            attend=bind(name, layout, MaskTensors.from_arrays(pack.mask), cp, kernel=kernel),
            seq_len=pack.mask.seq_len,
        )

    def run(self, model: Any) -> None:
        """Forward and backward pass."""
        hidden = model.model(
            input_ids=self.ids[None],
            position_ids=self.positions[None],
            use_cache=False,
            attend=self.attend,
            pack_length=self.seq_len,
        ).last_hidden_state[0]
        loss_sum(hidden, model.lm_head.weight, self.ids.roll(-1), torch.ones(len(self.ids))).backward()
        for parameter in model.parameters():
            parameter.grad = None


def on_a_rank(rank: int, folder: str, config: PackConfig, kinds: dict[str, list[MadePack]], rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    model, found = made_model(config.seq_len), {}
    meshes = {
        shape: build_mesh("cpu", dp_replicate=1, dp_shard=shape[0], ulysses_degree=shape[1], ring_degree=shape[2])
        for shape in ((2, 1, 1), (1, 2, 1), (1, 1, 2))
    }
    clock = PathClock(dist.new_group())
    link = message_speed()
    rings = [(1, 2, scheme, kind) for scheme in config.layouts for kind in ("gather", "ring")]
    for name, packs in kinds.items():
        best: Splits = {}
        for _ in range(rounds):
            for split in ((1, 1, "contiguous", "none"), (2, 1, "contiguous", "ulysses"), *rings):
                cp = meshes[RANKS // split[0] // split[1], split[0], split[1]].cp
                seconds = 0.0
                for number, pack in enumerate(packs):
                    if cp.cp_size == 1 and number != rank:
                        continue  # each process has a pack of its own
                    step = Step.of(pack, split, cp)
                    if cp.cp_size > 1:
                        clock.latest()  # both begin together
                    clock.restart()
                    with clock.over_collectives():
                        step.run(model)
                    seconds += clock.latest() if cp.cp_size > 1 else clock.read()
                if cp.cp_size == 1:
                    clock.seconds = seconds
                    seconds = clock.latest()
                best[split] = min(best.get(split, float("inf")), seconds)
        found[name] = [[*split, seconds] for split, seconds in best.items()]
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps({"link": link, "found": found}))
    dist.destroy_process_group()


def message_speed() -> tuple[float, float]:
    """Bytes per second of processor time, and processor seconds of a message besides its bytes."""
    taken = {}
    for size in (64, MESSAGE):
        sent = torch.zeros(RANKS * size // 4)
        received = torch.empty_like(sent)
        began = time.process_time()
        for _ in range(20):
            dist.all_to_all_single(received, sent)
        taken[size] = (time.process_time() - began) / 20
    return MESSAGE / max(taken[MESSAGE] - taken[64], 1e-9), taken[64]


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
    """The advice for H100s and the default model, and what a million packs take."""
    config = PackConfig()
    sizes = configured_sizes(config.cost, config.vision, None, "default")
    question = make_question({"gpus": gpus, "limit": 3})
    for kind in KINDS:
        packs = made_packs(kind, config, gpus)
        advice = Advisor(config=config, sizes=sizes, question=question, loads=loads_of(packs, config, gpus)).advice()
        print(f"\n{kind}: {advice.considered} splits, {advice.fitting} fit")
        for split in [*advice.splits, *([advice.cp1] if advice.cp1 else [])]:
            print(
                f"  U {split.ulysses_degree} R {split.ring_degree} {split.layout} {split.kind} dp {split.dp_size} "
                f"recompute {split.recompute}: {split.tokens_per_second:,.0f} tokens/s each, "
                f"{split.memory.total:.1f} GB, over zigzag {split.speedup_over_zigzag or 0:.2f}, "
                f"over cp 1 {split.speedup_over_cp1 or 0:.2f}\n    {split.reason}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="time every split on two processes")
    parser.add_argument("--seq-len", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=64)
    given = parser.parse_args()
    print(f"{hardware()}, torch {torch.__version__}")
    if given.measure:
        return min(measure(given.seq_len, given.rounds), 1)
    print_advice_of_kinds(given.gpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())

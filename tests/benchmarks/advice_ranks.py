"""One of two processes that train with a split, and its clock; see ``advice.py``."""

from __future__ import annotations

import json
import sys
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
from advice_packs import MadePack  # noqa: E402

from preshard.packer_service.layout.solve import solve_layouts  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.layout import TILE, rank_positions  # noqa: E402
from preshard.trainer.attention.bind import bind  # noqa: E402
from preshard.trainer.attention.kernels import Whole  # noqa: E402
from preshard.trainer.attention.mask import MaskTensors  # noqa: E402
from preshard.trainer.core.mesh import build_mesh  # noqa: E402
from preshard.trainer.models.loss import loss_sum  # noqa: E402

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 128, 1, 4, 2, 64, 2048
RANKS = 2
COLLECTIVES = ("all_gather_single", "all_to_all_single", "all_gather_into_tensor", "all_reduce")
MESSAGE = 1 << 20

Splits = dict[tuple[int, int, str, str], float]
"""Seconds by Ulysses degree, ring degree, layout and kind of attention."""


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
    from preshard.trainer.models.interface import PACKED, register_attention

    transformers = register_attention()
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=3 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=seq_len,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=PACKED).train()


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

"""Prints what attention sends and computes for keys and values that are expanded from latents, by the sizes of models.

    python tests/benchmarks/latents.py            # the table of docs/attention.md
    python tests/benchmarks/latents.py --seconds  # and processor time of both ways

Eight ranks, which are threads here, attend to a pack of one document in the sizes of one layer. Numbers are counted in
the messages that leave a rank, forward, over the tokens of the pack. Expanding is in MFLOP forward, for a token of the
pack on each rank of ``gather`` or ``ring``. The last column is the speed of a link at which sending what is saved,
forward and backward, takes as long as expanding more does, at 400 TFLOP/s and 2 bytes a number, 4 in gradients.

``--seconds`` takes the processor time of all ranks for a layer of MiniCPM3-4B on 2 ranks in the layout ``zigzag``,
forward and backward, from latents, with keys and values that are expanded before and with latents that travel.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests" / "support")]

import numpy as np  # noqa: E402
import thread_ranks  # noqa: E402
import torch  # noqa: E402
from machine import hardware  # noqa: E402
from torch import Tensor  # noqa: E402

from preshard.schemas.layout import TokenLayout  # noqa: E402
from preshard.schemas.schemes import zigzag_runs  # noqa: E402
from preshard.schemas.sequence import CAUSAL_ONLY, MaskArrays  # noqa: E402
from preshard.trainer.attention.bind import bind  # noqa: E402
from preshard.trainer.attention.context_parallel import ContextParallel  # noqa: E402
from preshard.trainer.attention.latent import expand  # noqa: E402
from preshard.trainer.attention.mask import MaskTensors  # noqa: E402

RANKS, TOKENS, OPERATIONS, BYTES, OF_GRADIENTS = 8, 64, 400e12, 2, 4


class Sizes(NamedTuple):
    """Sizes of one layer: heads, the plain and the shared width of keys, the width of values, that of latents."""

    heads: int
    plain: int
    shared: int
    values: int
    latent: int

    @property
    def keys(self) -> int:
        return self.plain + self.shared

    @property
    def expanding(self) -> int:
        """Operations of expanding a token."""
        return 2 * self.latent * self.heads * (self.plain + self.values)


MODELS = {
    "DeepSeek-V3": Sizes(128, 128, 64, 128, 512),
    "GLM-4.7-Flash": Sizes(20, 192, 64, 256, 512),
    "MiniCPM3-4B": Sizes(40, 64, 32, 64, 256),
}
"""Models by their released configurations."""


def attend(sizes: Sizes, kind: str, ulysses: int, ring: int, tokens: int, *, latents: bool, backward: bool) -> None:
    """Attention of one document on all ranks."""
    layout = TokenLayout(
        scheme="zigzag",
        ring_degree=ring,
        block_size=tokens,
        runs=zigzag_runs(np.array([0, tokens]), ring),
        needs=np.ones((ring, 1), np.bool_),
    )
    one = np.zeros(tokens, np.int32)
    mask = MaskTensors.from_arrays(
        MaskArrays(doc_ids=one, branch_ids=one, group_ids=np.full(tokens, CAUSAL_ONLY, np.int32))
    )
    made = (sizes.latent, sizes.heads, sizes.plain + sizes.values)

    def on_rank(cp: ContextParallel) -> None:
        local = tokens // cp.cp_size
        shapes = (sizes.heads, local, sizes.keys), (1, local, sizes.latent), (1, local, sizes.shared), made
        q, latent, shared, up = (torch.randn(*shape).div_(8).requires_grad_() for shape in shapes)
        call = bind(kind, layout, mask, cp, exchange="all")
        out = call(q, latent, shared, up=up) if latents else call(q, *expand(latent, shared, up, sizes.keys))
        if backward:
            out.sum().backward()

    thread_ranks.run_ranks(ulysses, ring, on_rank)


def count_sent(sizes: Sizes, kind: str, *, latents: bool) -> float:
    """Numbers that a rank sends to others, forward, for a token of the pack."""
    sent: list[float] = []
    all_to_all, all_gather = thread_ranks._all_to_all, thread_ranks._all_gather
    p2p = thread_ranks._send_and_receive

    def noted_all_to_all(received: Tensor, data: Tensor, *args: Any, group: Any, **named: Any) -> Any:
        sent.append(data.numel() * (RANKS - 1) / RANKS)
        return all_to_all(received, data, *args, group=group, **named)

    def noted_all_gather(received: Tensor, data: Tensor, *, group: Any, **named: Any) -> Any:
        sent.append(data.numel() * (RANKS - 1))
        return all_gather(received, data, group=group, **named)

    def noted_p2p(operations: Any) -> Any:
        sent.append(sum(each.tensor.numel() for each in operations if each.sends))
        return p2p(operations)

    ulysses, ring = (RANKS, 1) if kind == "ulysses" else (1, RANKS)
    with mock.patch.multiple(
        thread_ranks, _all_to_all=noted_all_to_all, _all_gather=noted_all_gather, _send_and_receive=noted_p2p
    ):
        attend(sizes, kind, ulysses, ring, TOKENS, latents=latents, backward=False)
    return sum(sent) / RANKS / TOKENS


def print_table() -> None:
    print("| | widths | heads | C + P | `gather` all, `ring` | with latents | `ulysses` | with latents | expanding "
          "| with latents | pays below |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, sizes in MODELS.items():
        there = [count_sent(sizes, "gather", latents=latents) for latents in (False, True)]
        assert there == [count_sent(sizes, "ring", latents=latents) for latents in (False, True)]
        heads = ["does not divide", ""]
        if sizes.heads % RANKS == 0:
            heads = [f"{count_sent(sizes, 'ulysses', latents=latents):,.0f}" for latents in (False, True)]
        work = sizes.expanding / RANKS, sizes.expanding
        more = 4 * work[1] - 3 * work[0]  # backward it is expanded again, and has two products more
        saved = (there[0] - there[1]) * (2 * BYTES + OF_GRADIENTS)
        columns = (
            *(name, f"{sizes.keys} + {sizes.values}", f"{sizes.heads}", f"{sizes.latent} + {sizes.shared}"),
            *(f"{each:,.0f}" for each in there),
            *heads,
            *(f"{each / 1e6:.1f}" for each in work),
            f"{saved / (more / OPERATIONS) / 1e9:,.0f} GB/s",
        )
        print(f"| {' | '.join(columns)} |")


def print_seconds(tokens: int) -> None:
    for kind in ("gather", "ring"):
        taken: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(3):
            for latents, seconds in taken.items():
                begun = time.process_time()
                attend(MODELS["MiniCPM3-4B"], kind, 1, 2, tokens, latents=latents, backward=True)
                seconds.append(time.process_time() - begun)
        expanded, travelling = (min(taken[latents]) for latents in (False, True))
        print(f"{kind}, {tokens:,} tokens: {expanded:.2f} s expanded before, {travelling:.2f} s with latents")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", action="store_true", help="take processor time, too")
    parser.add_argument("--tokens", type=int, default=2048, help="of the pack whose time is taken")
    options = parser.parse_args()
    print(hardware())
    print_table()
    if options.seconds:
        print_seconds(options.tokens)

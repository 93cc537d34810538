"""Predicts what a step gains if exchanges hide behind computing, in ways that are built and ways that are not.

    python tests/benchmarks/hidden_exchange.py [--tokens 131072] [--recompute selective] [--tail 0.5] [--taken 0.15]

A layer of a rank of eight is played through, forward and backward: kernels run one after another, messages travel one
after another beside them, each as soon as what it needs is there. Work, bytes, speeds and latency are those of
``preshard advise``. Assumed besides: at the end of a call of attention the device waits for ``--tail`` of its longest
row of tiles, and what travels takes ``--taken`` of the device. Transfers of parameters are left out, which take from
the same links; so is the encoder of Qwen3-VL-8B, whose decoder is Qwen3-8B's. No GPU has confirmed a figure.

Ways of ``ulysses``: with hooks on projections (not built) q, k and v each leave when their projection has ended, and
norm and rotary come behind the exchange; backward each projection waits for its own gradient alone, and the gradient of
the output projection's weight is computed while that of its input travels. In pieces (``--overlap``, which takes two)
some of a rank's heads travel while others are attended to. Ways of ``gather``: in turns (``--head-stride``), and ahead
(``--overlap``): the next turn's keys travel while one is attended to, and gradients of the one before.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import numpy as np  # noqa: E402
from machine import hardware  # noqa: E402
from training_estimates import LLAMA, TEXT  # noqa: E402

from preshard.packer_service.layout.mask import MaskIndex  # noqa: E402
from preshard.packer_service.layout.needs import keys_fetched  # noqa: E402
from preshard.packer_service.layout.solve import solve_layouts  # noqa: E402
from preshard.packer_service.report.advice.estimate.outside import (  # noqa: E402
    BACKWARD,
    FORWARD,
    GATHERED,
    HEADS,
    KEYS,
    LOGITS,
    OWNED,
)
from preshard.packer_service.report.advice.estimate.seconds import Links  # noqa: E402
from preshard.packer_service.report.advice.question import AdviceQuestion  # noqa: E402
from preshard.schemas.layout import TILE  # noqa: E402
from preshard.schemas.model.dimensions import ModelDimensions, model_dimensions  # noqa: E402
from preshard.schemas.sequence import MaskArrays  # noqa: E402

RANKS, ASKED = 8, AdviceQuestion()
PEAK, MEMORY = ASKED.device.peak_tflops * 1e12, ASKED.device.memory_gb_per_s * 1e9 * ASKED.memory_efficiency
MULTIPROCESSORS = 132
"""Multiprocessors of an H100 SXM, by NVIDIA's datasheet."""

ULYSSES = {
    "hooks": (1, True), "2 pieces": (2, False), "4 pieces": (4, False), "hooks, 2 pieces": (2, True),
}  # fmt: skip
GATHER = {"2 turns": (2, False), "2 ahead": (2, True), "4 ahead": (4, True), "8 ahead": (8, True)}


class Rank:
    """A queue of kernels, and one of messages."""

    def __init__(self, taken: float) -> None:
        self.now = self.link = 0.0
        self.left = 1 - taken

    def run(self, seconds: float) -> None:
        beside = min(seconds, max(self.link - self.now, 0.0) * self.left)
        self.now += beside / self.left + seconds - beside

    def send(self, seconds: float) -> float:
        """Starts a message of what has been computed; returns when it arrives."""
        self.link = max(self.link, self.now) + seconds
        return self.link

    def wait(self, *arrivals: float) -> None:
        self.now = max([self.now, *arrivals])


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Seconds of the parts of a layer on one rank.

    Attributes:
        own: tokens of the rank.
        tiles, longest: of the pack, and of a row.
        keys: what a gather fetches.
        near: ranks in its node; 0 if messages take no time.
        compiled: whether blocks are fused.
        tail: what a call of attention waits for, in longest rows.
    """

    sizes: ModelDimensions
    own: int
    tiles: int
    longest: int
    keys: int
    near: int
    compiled: bool
    tail: float

    def products(self, width: float) -> float:
        return 2 * self.sizes.hidden * width * self.own / (PEAK * ASKED.product_efficiency)

    def project(self, number: int) -> float:
        """One of q, k and v."""
        return self.products(self.heads[number] * self.sizes.head_dim)

    def prepare(self, number: int, *, back: bool = False) -> float:
        """All that lies between a projection and attention."""
        _, queries, keys, *_ = (BACKWARD if back else FORWARD)[self.compiled]
        return (queries, keys, 0)[number] * self.heads[number] * self.sizes.head_dim * self.own / MEMORY

    def rest(self, *, back: bool = False) -> float:
        """The output projection, the MLP, and all between products but what :meth:`prepare` counts."""
        sizes, moved = self.sizes, (BACKWARD if back else FORWARD)[self.compiled]
        width = sizes.heads * sizes.head_dim + 3 * sizes.inner
        between = (moved.hidden * sizes.hidden + moved.inner * sizes.inner) * self.own / MEMORY
        return (1 + back) * self.products(width) + between

    def copies(self, kind: str, recompute: str) -> float:
        """Seconds of the copies of a step, around exchanges; the same in every way to exchange."""
        of_keys, again = 2 * self.sizes.kv_heads * self.sizes.head_dim, recompute == "full"
        if kind == "gather":
            return of_keys * (self.keys + self.own) * (KEYS[0] * (1 + again) + KEYS[1]) / MEMORY
        of_heads, times = of_keys + 2 * self.sizes.heads * self.sizes.head_dim, 1 + (recompute != "none")
        return of_heads * self.own * (HEADS[0] * times + HEADS[1]) / MEMORY

    def ends(self) -> float:
        """All of a step that lies outside layers."""
        bytes_moved = LOGITS * self.sizes.vocab * self.own + (GATHERED + OWNED / RANKS) * self.sizes.parameters
        return 4 * self.products(self.sizes.vocab) + bytes_moved / MEMORY

    def attend(self, share: float) -> float:
        """One call for a share of the heads."""
        speed, of_layer = PEAK * ASKED.attention_efficiency, self.sizes.tile_flops / self.sizes.layers
        tail = self.tail * self.longest * of_layer / self.sizes.heads * MULTIPROCESSORS
        return (share * self.tiles * of_layer / RANKS + tail) / speed

    def exchanged(self, heads: float) -> float:
        """A message of some heads of all ranks, of this rank's tokens."""
        return self._message(heads * self.sizes.head_dim * self.own * (RANKS - 1) / RANKS * ASKED.compute_bytes)

    def gathered(self, share: float, size: int) -> float:
        """A message of a share of the key heads, of the keys that a rank fetches."""
        return self._message(2 * share * self.sizes.kv_heads * self.sizes.head_dim * self.keys * size)

    def _message(self, size: float) -> float:
        return float(Links(question=ASKED).spread(size, RANKS, self.near)) if self.near and size else 0.0

    @property
    def heads(self) -> tuple[int, int, int]:
        return self.sizes.heads, self.sizes.kv_heads, self.sizes.kv_heads


def ulysses(rank: Rank, layer: Layer, times: float, pieces: int, hooks: bool, *, back: bool) -> None:
    """A pass in which attention takes so many times its forward. A rank's query heads share one key head."""
    of_q, of_k = layer.heads[0] / pieces, layer.heads[1]
    if back:
        later = layer.project(0) if hooks else 0.0
        rank.run(layer.rest(back=True) - later)
        coming = [rank.send(layer.exchanged(of_q))]
        rank.run(later)
    else:
        coming = []
        for number, heads in enumerate((of_q, of_k, of_k)):
            rank.run(layer.project(number))
            coming += [rank.send(layer.exchanged(heads))] if hooks else []
        for number in range(3):
            rank.wait(*coming[number : number + 1])
            rank.run(layer.prepare(number))
        coming = coming or [rank.send(layer.exchanged(of_q + 2 * of_k))]
    returns = []
    for piece in range(pieces):
        rank.wait(*coming)
        last = piece + 1 == pieces
        coming = [] if last else [rank.send(layer.exchanged(of_q))]
        rank.run(times * layer.attend(1 / pieces))
        if last and hooks and back:
            rank.run(sum(layer.prepare(number, back=True) for number in range(3)))
            returns += [rank.send(layer.exchanged(of_k)), rank.send(layer.exchanged(of_k))]
        returns.append(rank.send(layer.exchanged(of_q + 2 * of_k * (last and back and not hooks))))
    if not back:
        rank.wait(*returns)
        rank.run(layer.rest())
        return
    for number, arrived in zip((2, 1, 0), (*returns[-3:-1], returns[-1]) if hooks else [max(returns)] * 3, strict=True):
        rank.wait(arrived)
        rank.run(2 * layer.project(number) + (0 if hooks else layer.prepare(number, back=True)))


def gather(rank: Rank, layer: Layer, times: float, turns: int, ahead: bool, *, back: bool) -> None:
    """A pass, likewise. Where attention is kept, it takes no time, and no keys travel."""
    own = sum((1 + back) * layer.project(number) + layer.prepare(number, back=back) for number in range(3))
    rank.run(layer.rest(back=True) if back else own)
    keys, sums = (layer.gathered(1 / turns, size) for size in (ASKED.compute_bytes, ASKED.sum_bytes))
    coming, returns = rank.send(keys) if times else 0.0, [0.0]
    for left in reversed(range(turns if times else 0)):
        rank.wait(coming)
        coming = rank.send(keys) if ahead and left else coming
        rank.run(times * layer.attend(1 / turns))
        returns += [rank.send(sums)] if back else []
        if not ahead:
            rank.wait(*returns)
            coming = rank.send(keys) if left else coming
    rank.wait(*returns)
    rank.run(own if back else layer.rest())


def step(layer: Layer, kind: str, way: tuple[int, bool], given: argparse.Namespace) -> float:
    """Seconds of a step with all layers."""
    play, rank = {"ulysses": ulysses, "gather": gather}[kind], Rank(given.taken)
    play(rank, layer, 1.0, *way, back=False)
    if given.recompute != "none":
        play(rank, layer, float(given.recompute == "full"), *way, back=False)
    play(rank, layer, ASKED.attention_backward, *way, back=True)
    return layer.sizes.layers * (rank.now + layer.copies(kind, given.recompute)) + layer.ends()


def measure(tokens: int, length: int) -> tuple[int, int, int]:
    """Tiles of a pack of equal documents, those of a longest row, and the most keys that a rank of a gather fetches."""
    doc_ids = (np.arange(tokens) // length).astype(np.int32)
    mask = MaskArrays(doc_ids=doc_ids, branch_ids=np.zeros_like(doc_ids), group_ids=np.full_like(doc_ids, -1))
    edges, ring = np.arange(0, tokens + 1, length), (RANKS,)
    [layout] = solve_layouts(mask, segment_edges=edges, schemes=("balanced_gather",), ring_degrees=ring)
    rows = length // TILE
    keys = keys_fetched(MaskIndex.of(mask), layout.runs, RANKS)
    return tokens // length * rows * (rows + 1) // 2, rows, int(keys.max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="selective")
    parser.add_argument("--tail", type=float, default=0.5)
    parser.add_argument("--taken", type=float, default=0.15)
    given = parser.parse_args()
    print(f"{hardware()}; {RANKS} H100, {vars(given)}; no GPU has confirmed a figure")
    models = [model_dimensions(text, None, name) for name, text in (("Qwen3-8B", TEXT), ("Llama-8B", LLAMA))]
    for kind, ways in (("ulysses", ULYSSES), ("gather", GATHER)):
        columns = ["model", "blocks", "GB/s", "tokens of a document", "step, s", "exchange, s", *ways]
        print(f"\n{kind}, and how much less a step takes:\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for length, near in product((given.tokens, given.tokens // 4, 4096), (RANKS, 1)):
            tiles, longest, keys = measure(given.tokens, length)
            for sizes, compiled in product(models, (True, False)):
                layer = Layer(
                    sizes=sizes, own=given.tokens // RANKS, tiles=tiles, longest=longest, keys=keys, near=near,
                    compiled=compiled, tail=given.tail,
                )  # fmt: skip
                plain = step(layer, kind, (1, False), given)
                alone = step(replace(layer, near=0), kind, (1, False), given)
                gains = (f"{1 - step(layer, kind, way, given) / plain:.1%}" for way in ways.values())
                speed = ASKED.device.network_gb_per_s if near == 1 else ASKED.device.node_gb_per_s
                cells = [sizes.source, "compiled" if compiled else "plain", f"{speed:.0f}", f"{length:,}"]
                print(f"| {' | '.join([*cells, f'{plain:.2f}', f'{plain - alone:.2f}', *gains])} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

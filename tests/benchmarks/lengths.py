"""One length at one CP size against several lengths with a CP size each: same documents, GPUs and tokens a rank.

    python tests/benchmarks/lengths.py [--packs 12] [--gpus 32]

One length: packs of 131,072 tokens over 8 ranks, by zigzag as ring attention computes it, and by our layout for
attention that gathers needed keys. Several lengths: 16,384 to 131,072 tokens over 1 to 8 ranks, each document in the
shortest that holds it, inside of packs by zigzag ("theirs", as dynamic context parallelism and Hierarchical Balance
Packing split) and by our layout ("ours"). That is the ideal: packs of one rank exchange nothing, steps hold packs of
one length, no time is lost between steps, and short documents fill what long ones leave free. A step lasts as long as
its slowest pack. "Any order" draws the packs of a step at random, as a loader that shuffles; in all other ways they are
of equal cost, which orders of some thousand packs reach to 0.3% (docs/planning.md).

* Idle attention: 1 - mean / max of the tiles of all GPUs of a step, the mean over steps by their length: after
  the attention balance ratio of Hierarchical Balance Packing (0 is even).
* Communication: keys that ranks receive, of those that gathering everything at 8 ranks would move, 1 as in zigzag: the
  same paper counts tokens in packs that are split, which is the last column.
* Time: linear layers, the tiles of the slowest rank and the keys of the rank that receives most, by the default cost
  model (an 8B decoder, 400 TFLOP/s), keys and their gradients three times, not hidden behind anything; over zigzag.

Lengths: "Llama 3" are those of its fine-tuning as Dubey et al. 2024 (section 4.3.4) give them: 99.89% of documents with
1,000 tokens on average, 0.11% with 37,000. No other whole distributions were found in figures, so the rest are made
up: "tail" is log-normal (median 900, deviation 1.5), "half" has half of its tokens in documents of 32,768 to 131,072,
"whole" has only such, "mixed" is that of our other benchmarks.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mixtures
from machine import hardware

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import measure_layout
from preshard.packer_service.layout.solve import solve_layouts
from preshard.packer_service.plan.cost import CostModel
from preshard.packer_service.plan.pack import pack_documents
from preshard.schemas.config import PackConfig
from preshard.schemas.layout import segment_edges
from preshard.schemas.sequence import MaskArrays

LENGTH, CP, ALIGNMENT = 131_072, 8, 16
SEVERAL = {LENGTH // CP * size: size for size in (1, 2, 4, 8)}
TFLOPS, LINKS = 400e12, {"50 GB/s": 50e9, "450 GB/s": 450e9}

Draw = Callable[[np.random.Generator, int], np.ndarray]


def _llama3(rng: np.random.Generator, count: int) -> np.ndarray:
    long = rng.random(count) < 0.0011
    return np.where(long, rng.gamma(4, 37_000 / 4, count), rng.gamma(1.5, 1_000 / 1.5, count))


def _half(rng: np.random.Generator, count: int) -> np.ndarray:
    short, long = np.exp(rng.normal(np.log(700), 1.0, count)), rng.uniform(32_768, LENGTH, count)
    return np.where(rng.random(count) < short.mean() / (short.mean() + long.mean()), long, short)


DISTRIBUTIONS: dict[str, Draw] = {
    "Llama 3": _llama3,
    "tail": lambda rng, count: np.exp(rng.normal(np.log(900), 1.5, count)),
    "half": _half,
    "whole": lambda rng, count: rng.uniform(32_768, LENGTH, count),
    "mixed": lambda rng, count: mixtures.lengths("mixed", count, int(rng.integers(1 << 30)))[0],
}


class Measured(NamedTuple):
    """A pack over its ranks: tiles of each, the most keys that one receives, and the keys that all receive."""

    tiles: np.ndarray
    most_keys: int
    keys: int


def drawn(draw: Draw, packs: int) -> np.ndarray:
    """Lengths of documents for so many packs, rounded up to the alignment of zigzag."""
    lengths = draw(np.random.default_rng(0), packs * 4096)
    lengths = np.clip(-(-lengths.astype(np.int64) // ALIGNMENT) * ALIGNMENT, ALIGNMENT, LENGTH)
    return lengths[: np.searchsorted(np.cumsum(lengths), packs * LENGTH)]


def measured(lengths: np.ndarray, seq_len: int, ranks: int) -> dict[str, Measured]:
    """A pack under both layouts."""
    doc_ids = np.full(seq_len, -1, np.int32)
    starts = np.cumsum(lengths) - lengths
    doc_ids[: lengths.sum()] = np.repeat(np.arange(len(lengths)), lengths)
    nothing = np.zeros(seq_len, np.int32)
    mask = MaskArrays(doc_ids=doc_ids, branch_ids=nothing, group_ids=nothing - 1)
    index, edges = MaskIndex.of(mask), segment_edges(starts, lengths, seq_len)
    schemes = ("zigzag", "balanced_gather") if ranks > 1 else ("contiguous",)
    found = {}
    for layout in solve_layouts(mask, segment_edges=edges, schemes=schemes, ring_degrees=[ranks]):
        loads = measure_layout(index, layout)
        tiles, keys = loads.tiles.sum(axis=1), loads.keys_fetched
        if layout.scheme == "zigzag":  # a ring passes every slice to every rank
            keys = np.full(ranks, seq_len // ranks * (ranks - 1))
        found[layout.scheme] = Measured(tiles, int(keys.max()), int(keys.sum()))
    return found if ranks > 1 else dict.fromkeys(("zigzag", "balanced_gather"), found["contiguous"])


def packed(lengths: np.ndarray, seq_len: int) -> list[np.ndarray]:
    places = pack_documents(lengths, np.zeros_like(lengths), seq_len=seq_len, max_images=None)
    return [lengths[places == pack] for pack in range(int(places.max()) + 1)]


def by_ranks(lengths: np.ndarray) -> dict[int, list[np.ndarray]]:
    """Packs of several lengths by their ranks, the longest documents first; shorter ones fill what these leave free."""
    left, found = sorted(lengths.tolist()), dict[int, list[np.ndarray]]()
    for seq_len, ranks in sorted(SEVERAL.items(), reverse=True):
        shorter = bisect_right(left, seq_len // 2) if ranks > 1 else 0
        own, left = np.array(left[shorter:], np.int64), left[:shorter]
        if not len(own):
            continue
        packs = [pack.tolist() for pack in packed(own, seq_len)]
        for pack in packs:
            free = seq_len - sum(pack)
            while (place := bisect_right(left, free)) and free:
                pack.append(left.pop(place - 1))
                free -= pack[-1]
        found[ranks] = [np.array(pack, np.int64) for pack in packs]
    return found


def figures(packs: dict[int, list[Measured]], gpus: int, link: float, *, ordered: bool) -> tuple[float, float, float]:
    """Seconds of all steps, the idle share of attention, and the keys of all packs; packs are by their ranks."""
    cost = CostModel.of(PackConfig())
    linear = cost.linear_flops_per_token * LENGTH / CP / TFLOPS
    tile = cost.attention_flops_per_tile / TFLOPS
    key = 3 * 4 * cost.model.num_key_value_heads * cost.model.head_dim * cost.model.num_layers / link
    seconds = idle = 0.0
    rng = np.random.default_rng(0)
    for ranks, own in packs.items():
        steps = (
            [[pack] for pack in own] if ordered else [_several(rng, own, gpus // ranks) for _ in range(64 * len(own))]
        )
        for step in steps:
            lasts = linear + max(pack.tiles.max() * tile + pack.most_keys * key for pack in step)
            tiles = np.concatenate([pack.tiles for pack in step])
            weight = ranks / gpus * lasts * len(own) / len(steps)
            idle += weight * (1 - tiles.mean() / tiles.max())
            seconds += weight
    return seconds, idle / seconds, sum(pack.keys for own in packs.values() for pack in own)


def _several(rng: np.random.Generator, packs: list[Measured], count: int) -> list[Measured]:
    return [packs[number] for number in rng.integers(0, len(packs), count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--packs", type=int, default=12)
    parser.add_argument("--gpus", type=int, default=32)
    given = parser.parse_args()
    print(hardware())
    print(f"{given.packs} packs of {LENGTH:,} tokens, {given.gpus} GPUs\n")
    print("| lengths | way | idle attention | communication | time, 50 GB/s | time, 450 GB/s | tokens in split packs |")
    print("|---|---|---|---|---|---|---|")
    for name, draw in DISTRIBUTIONS.items():
        lengths = drawn(draw, given.packs)
        one = [measured(each, LENGTH, CP) for each in packed(lengths, LENGTH)]
        of_ranks = by_ranks(lengths)
        several = {
            ranks: [measured(each, LENGTH // CP * ranks, ranks) for each in own] for ranks, own in of_ranks.items()
        }
        split = sum(int(pack.sum()) for ranks, own in of_ranks.items() for pack in own if ranks > 1) / lengths.sum()
        every = len(one) * LENGTH * (CP - 1)
        base: list[float] = []
        for way, packs, part in (
            ("one length, zigzag, any order", {CP: [pack["zigzag"] for pack in one]}, 1.0),
            ("one length, zigzag", {CP: [pack["zigzag"] for pack in one]}, 1.0),
            ("one length, ours", {CP: [pack["balanced_gather"] for pack in one]}, 1.0),
            ("several, theirs", {r: [pack["zigzag"] for pack in own] for r, own in several.items()}, split),
            ("several, ours", {r: [pack["balanced_gather"] for pack in own] for r, own in several.items()}, split),
        ):
            ordered = not way.endswith("any order")
            found = [figures(packs, given.gpus, link, ordered=ordered) for link in LINKS.values()]
            base = base or [seconds for seconds, *_ in found]
            times = " | ".join(f"{seconds / first:.3f}" for (seconds, *_), first in zip(found, base, strict=True))
            print(f"| {name} | {way} | {found[0][1]:.3f} | {found[0][2] / every:.3f} | {times} | {part:.2f} |")


if __name__ == "__main__":
    main()

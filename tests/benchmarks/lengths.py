"""One length at one CP size against several lengths with a CP size each: same documents, GPUs and tokens a rank.

    python tests/benchmarks/lengths.py [--tokens 8] [--only WORD]

One length is the one that holds the longest document. Several lengths are that one, half of it and so on down to what a
single rank holds, each document in the shortest that holds it; inside of packs by zigzag ("theirs", as dynamic context
parallelism and Hierarchical Balance Packing split) or by our layout ("ours"). That is the ideal: packs of one rank
exchange nothing, steps hold packs of one length and of equal cost, no time is lost between steps, and short documents
fill what long ones leave free. "Like with like" is one length whose packs are put together from those packs.

Each length takes the fastest split that fits as `preshard advise` estimates it, Ulysses inside of a node and a ring or
a gather across (an 8B decoder, attention at 40% and links at 80% of their peak, nothing but a ring's transfers hidden,
`--recompute selective`). Zigzag passes all keys round a ring; our layout gathers those that are needed.

* Idle: the share of attention's time that ranks of a pack wait for the slowest of them; steps are even.
* Exchange: the share of the step in which ranks send heads or keys.
* Split: tokens in packs over more than one rank, what Hierarchical Balance Packing calls the communication ratio.

Set-ups that others have published:

* "Llama 3": fine-tuning, 99.89% of documents with 1,000 tokens on average, 0.11% with 37,000 (Dubey et al. 2024,
  section 4.3.4).
* "Tulu 3, LongCite": 0.9 thousand tokens on average, 17.3% of all in documents of 16,384 to 131,072, which are drawn
  evenly; 8 H100 a pack (Yao et al. 2025, Hierarchical Balance Packing, tables 3 and 11).
* "LMSYS-Chat-1M": 99% below 4,096, the longest 300,000 (Yuan et al. 2025, ChunkFlow, table 1), cut to 262,144; the
  last per cent is drawn evenly on a logarithmic scale, so it is longer than theirs.
* "MagiAttention": the table of 13 million documents of up to 196,608 tokens with which its benchmarks draw packs
  (SandAI-org/MagiAttention, exps/dist_attn/benchmark/datasets), even inside of its ranges; "MagiAttention, long": its
  other table, of up to 4,194,304 (exps/attn/run_benchmark.py), cut to 1,048,576.

No figures were found for Zeppelin, FlexSP, ByteScale and Skrull. "tail" is made up, log-normal (median 900, deviation
1.5); "mixed" is that of our other benchmarks, with clips of up to 36,864 tokens.
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
from preshard.packer_service.plan.pack import pack_documents
from preshard.packer_service.report.advice.estimate.loads import COLUMNS, PackLoads, SlowestRank
from preshard.packer_service.report.advice.estimate.memory import MemoryEstimate
from preshard.packer_service.report.advice.estimate.seconds import Estimate
from preshard.packer_service.report.advice.estimate.split import SplitChoice
from preshard.packer_service.report.advice.model import configured_sizes
from preshard.packer_service.report.advice.question import AdviceQuestion
from preshard.schemas.config import PackConfig
from preshard.schemas.layout import segment_edges
from preshard.schemas.sequence import MaskArrays

Draw = Callable[[np.random.Generator, int], np.ndarray]
SIZES = configured_sizes(PackConfig().cost, PackConfig().vision, None, "default")
GPUS, RECOMPUTE = 128, "selective"

MAGI_EDGES = (1, 11, 51, 101, 201, 501, 1025, 2049, 4097, 8193, 16385, 32769, 65537, 131073, 196609)
MAGI_COUNTS = (
    *(30254, 391188, 699596, 1377757, 3794735, 3316785, 2106566, 988525, 410002, 173574, 115007, 18428, 22513, 18284),
)

LONG_SHARES = np.array([16, 5, 4, 6, 8, 21, 40, 20, 5, 4, 1, 1]) / 131
"""Shares of documents below 2,048 tokens, from there to 4,096, and so on."""


def _two(short: float, long: Callable[[np.random.Generator, int], np.ndarray], share: float) -> Draw:
    """Short documents of a mean, and a share of long ones."""

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        return np.where(rng.random(count) < share, long(rng, count), rng.gamma(1.5, short / 1.5, count))

    return draw


def _magi(rng: np.random.Generator, count: int) -> np.ndarray:
    places = rng.choice(len(MAGI_COUNTS), count, p=np.array(MAGI_COUNTS) / sum(MAGI_COUNTS))
    return rng.integers(np.array(MAGI_EDGES)[places], np.array(MAGI_EDGES)[places + 1])


def _magi_long(rng: np.random.Generator, count: int) -> np.ndarray:
    above = 2048 << rng.choice(len(LONG_SHARES), count, p=LONG_SHARES)
    return rng.integers(np.where(above > 2048, above // 2, 1), above)


LLAMA_3 = _two(1_000, lambda rng, count: rng.gamma(4, 37_000 / 4, count), 0.0011)
TULU_3 = _two(800, lambda rng, count: rng.uniform(16_384, 131_072, count), 0.173 * 800 / (0.827 * 73_728))
LMSYS = _two(700, lambda rng, count: 4096 * (262_144 / 4096) ** rng.random(count), 0.01)


class SetUp(NamedTuple):
    """Documents, the longest length over the most ranks, and the devices."""

    name: str
    draw: Draw
    seq_len: int
    ranks: int
    gpu: str = "h100"


SET_UPS = (
    SetUp("Llama 3", LLAMA_3, 131_072, 8),
    SetUp("Llama 3", LLAMA_3, 131_072, 8, "l40s"),
    SetUp("Tulu 3, LongCite", TULU_3, 131_072, 8),
    SetUp("LMSYS-Chat-1M", LMSYS, 262_144, 16),
    SetUp("MagiAttention", _magi, 262_144, 16),
    SetUp("MagiAttention, long", _magi_long, 1_048_576, 64),
    SetUp("tail", lambda rng, count: np.exp(rng.normal(np.log(900), 1.5, count)), 131_072, 8),
    SetUp("mixed", lambda rng, count: mixtures.lengths("mixed", count, int(rng.integers(1 << 30)))[0], 65_536, 4),
)


class Way(NamedTuple):
    """GPU-seconds of all packs, and the parts of them that attention, waiting for ranks, and sending take."""

    total: float
    attention: float
    waiting: float
    exchange: float
    split: str

    def plus(self, other: Way) -> Way:
        sums = (mine + its for mine, its in zip(self[:4], other[:4], strict=True))
        return Way(*sums, f"{self.split}, {other.split}" if self.split else other.split)


def drawn(set_up: SetUp, tokens: int) -> np.ndarray:
    """Lengths of documents, rounded up to the alignment of zigzag."""
    lengths = set_up.draw(np.random.default_rng(0), tokens // 64).astype(np.int64)
    alignment = 2 * set_up.ranks
    lengths = np.clip(-(-lengths // alignment) * alignment, alignment, set_up.seq_len)
    return lengths[: np.searchsorted(np.cumsum(lengths), tokens)]


def packed(lengths: np.ndarray, seq_len: int) -> list[np.ndarray]:
    places = pack_documents(lengths, np.zeros_like(lengths), seq_len=seq_len, max_images=None)
    return [lengths[places == pack] for pack in range(int(places.max()) + 1)]


def by_ranks(lengths: np.ndarray, set_up: SetUp) -> dict[int, list[np.ndarray]]:
    """Packs of several lengths by their ranks, the longest documents first; shorter ones fill what these leave free."""
    left, found, ranks = sorted(lengths.tolist()), dict[int, list[np.ndarray]](), set_up.ranks
    while ranks and left:
        seq_len = set_up.seq_len // set_up.ranks * ranks
        shorter = bisect_right(left, seq_len // 2) if ranks > 1 else 0
        own, left = np.array(left[shorter:], np.int64), left[:shorter]
        packs = [pack.tolist() for pack in packed(own, seq_len)] if len(own) else []
        for pack in packs:
            free = seq_len - sum(pack)
            while (place := bisect_right(left, free)) and free:
                pack.append(left.pop(place - 1))
                free -= pack[-1]
        found[ranks] = [np.array(pack, np.int64) for pack in packs]
        ranks //= 2
    return {ranks: packs for ranks, packs in found.items() if packs}


def like_with_like(of_ranks: dict[int, list[np.ndarray]], set_up: SetUp) -> list[tuple[np.ndarray, np.ndarray]]:
    """Packs of one length, each of shorter packs of one length and of similar cost: starts and lengths of documents."""
    found, room = list[tuple[np.ndarray, np.ndarray]](), 0
    parts = [(ranks, pack) for ranks in sorted(of_ranks, reverse=True) for pack in sorted(of_ranks[ranks], key=_cost)]
    for ranks, pack in parts:
        seq_len = set_up.seq_len // set_up.ranks * ranks
        if room < seq_len:
            found, room = [*found, (np.zeros(0, np.int64), np.zeros(0, np.int64))], set_up.seq_len
        starts = set_up.seq_len - room + np.cumsum(pack) - pack
        found[-1] = (np.concatenate([found[-1][0], starts]), np.concatenate([found[-1][1], pack]))
        room -= seq_len
    return found


def _cost(pack: np.ndarray) -> float:
    return -float((pack.astype(float) ** 2).sum())


def one_after_another(packs: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.cumsum(pack) - pack, pack) for pack in packs]


def rings_of(ranks: int) -> list[int]:
    """Ring degrees at which Ulysses takes one rank, or as many as a node has."""
    return sorted({ranks, max(1, ranks // 8)} | ({2, 4} if ranks == 8 else set()))


def loads_of(packs: list[tuple[np.ndarray, np.ndarray]], seq_len: int, ranks: int) -> PackLoads:
    """Loads that packs put on ranks under both layouts."""
    rings = [ring for ring in rings_of(ranks) if ring > 1]
    measured, tiles = dict[tuple[str, int], list[tuple[int, np.ndarray, int]]](), []
    for starts, lengths in packs:
        doc_ids, nothing = np.full(seq_len, -1, np.int32), np.zeros(seq_len, np.int32)
        doc_ids[np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())] = np.repeat(
            np.arange(len(lengths)), lengths
        )
        index = MaskIndex.of(MaskArrays(doc_ids=doc_ids, branch_ids=nothing, group_ids=nothing - 1))
        schemes = ("zigzag", "balanced_gather") if rings else ("contiguous",)
        edges = segment_edges(starts, lengths, seq_len)
        for layout in solve_layouts(index, segment_edges=edges, schemes=schemes, ring_degrees=rings or [1]):
            found = measure_layout(index, layout)
            key = layout.scheme, layout.ring_degree
            measured.setdefault(key, []).append((found.gather_path, found.ring_steps, int(found.keys_fetched.max())))
        tiles.append(found.whole_tiles)
    layouts = {
        key: SlowestRank(
            gather_path=np.array([path for path, _, _ in each]),
            ring_steps=np.stack([steps for _, steps, _ in each], axis=1),
            most_keys=np.array([keys for _, _, keys in each]),
        )
        for key, each in measured.items()
    }
    columns = {name: np.zeros(len(packs), np.int64) for name in COLUMNS} | {"attention_tiles": np.array(tiles)}
    return PackLoads(n_packs=len(packs), spans=(range(len(packs)),), columns=columns, layouts=layouts, images={})


def fastest(loads: PackLoads, seq_len: int, ranks: int, gpu: str, layout: str) -> Way:
    """All packs under the fastest split that fits."""
    asked = AdviceQuestion(gpus=GPUS, gpu=gpu)
    estimate = Estimate(sizes=SIZES, question=asked, loads=loads, seq_len=seq_len)
    memory = MemoryEstimate(sizes=SIZES, question=asked, loads=loads, seq_len=seq_len, gpus=GPUS)
    ways = []
    for ring in rings_of(ranks):
        kind = "none" if ranks == 1 else "ulysses" if ring == 1 else "ring" if layout == "zigzag" else "gather"
        split = SplitChoice(ulysses=ranks // ring, ring=ring, layout=layout, kind=kind, dp=GPUS // ranks)
        if memory.of_rank(split, RECOMPUTE).total > asked.device.memory_gb * asked.memory_share:
            continue
        found = estimate.of_packs(split, RECOMPUTE)
        parts = (found.total, found.attention, found.attention_waiting, found.exchange)
        ways.append(Way(*(ranks * float(part.sum()) for part in parts), f"{split.ulysses} x {ring}"))
    return min(ways)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=8, help="tokens to draw, in packs of 1,048,576")
    parser.add_argument("--only", default="", help="set-ups whose names contain a word")
    given = parser.parse_args()
    print(f"{hardware()}; times are estimates\n")
    print("| documents | devices, length | way | ulysses x ring | idle | exchange | split | time |")
    print("|---|---|---|---|---|---|---|---|")
    for set_up in (each for each in SET_UPS if given.only in each.name):
        lengths = drawn(set_up, given.tokens << 20)
        of_ranks, each = by_ranks(lengths, set_up), set_up.seq_len // set_up.ranks
        one, like = one_after_another(packed(lengths, set_up.seq_len)), like_with_like(of_ranks, set_up)
        mixed, alike = (loads_of(packs, set_up.seq_len, set_up.ranks) for packs in (one, like))
        several = {ranks: loads_of(one_after_another(packs), each * ranks, ranks) for ranks, packs in of_ranks.items()}
        share = sum(int(pack.sum()) for ranks, packs in of_ranks.items() if ranks > 1 for pack in packs) / lengths.sum()
        ways = [
            (name, fastest(found, set_up.seq_len, set_up.ranks, set_up.gpu, layout), 1.0)
            for name, found, layout in (
                ("one length, zigzag", mixed, "zigzag"),
                ("one length, ours", mixed, "balanced_gather"),
                ("one length, like with like, ours", alike, "balanced_gather"),
            )
        ]
        for said, layout in (("theirs", "zigzag"), ("ours", "balanced_gather")):
            whole = Way(0, 0, 0, 0, "")
            for ranks, found in several.items():
                whole = whole.plus(fastest(found, each * ranks, ranks, set_up.gpu, layout))
            ways.append((f"several, {said}", whole, share))
        where = f"{set_up.ranks} {set_up.gpu}, {set_up.seq_len:,}"
        for name, way, part in ways:
            idle, exchange = way.waiting / (way.attention + way.waiting), way.exchange / way.total
            time = way.total / ways[0][1].total
            print(
                f"| {set_up.name} | {where} | {name} | {way.split} | {idle:.3f} | {exchange:.3f} | {part:.2f} "
                f"| {time:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

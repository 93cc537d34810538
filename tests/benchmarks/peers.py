"""Packing and splitting images beside what others do, on the same documents in the same run.

    pip install -c constraints.txt -e '.[peers]'
    python tests/benchmarks/peers.py [--documents 20000]

* Packing: TRL's ``pack_dataset`` from its package, best-fit decreasing by tokens ("bfd"), and our planner, by tokens
  alone and with the image budget, which TRL does not know. TRL packs rows of tokens and ours lengths, so TRL's time
  includes moving the tokens; the same function on rows of one token a thousand shows how much of it that is.
* Images: the running count of Molmo2 (allenai/molmo2, ``olmo/data/dynamic_packer.py``): rank r takes units until the
  images so far reach (r + 1) / ranks of all, and a rank left without any takes one from a neighbour. Written here from
  that description; beside it the best boundaries in the order of tokens, halves of halves by largest first, our stored
  order, and single crops, which some encoders let ranks share. No order can be below the bound.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import datasets  # noqa: E402
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from machine import hardware  # noqa: E402
from mixtures import MIXTURES, SEQ_LEN, lengths  # noqa: E402
from trl.data_utils import pack_dataset  # noqa: E402

from preshard.packer_service.layout.unit_order import balanced_order  # noqa: E402
from preshard.packer_service.plan.kinds import kinds_of, lower_bound  # noqa: E402
from preshard.packer_service.plan.pack import pack_documents  # noqa: E402
from preshard.schemas.boundaries import image_edges  # noqa: E402

MAX_IMAGES = 384


def rows_of(tokens: np.ndarray) -> datasets.Dataset:
    """Rows of so many tokens, all the same: only their number matters here."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(tokens)]).astype(np.int32))
    values = pa.array(np.zeros(int(tokens.sum()), np.int32))
    return datasets.Dataset(pa.table({"input_ids": pa.ListArray.from_arrays(offsets, values)}))


def trl_packs(tokens: np.ndarray, seq_len: int) -> tuple[int, float]:
    """Packs and seconds of TRL, with all rows in one batch: packs do not cross batches."""
    rows = rows_of(tokens)
    began = time.perf_counter()
    packed = pack_dataset(rows, seq_len, "bfd", map_kwargs={"batch_size": len(tokens), "keep_in_memory": True})
    return len(packed), time.perf_counter() - began


def our_packs(tokens: np.ndarray, images: np.ndarray, max_images: int | None) -> tuple[int, float]:
    began = time.perf_counter()
    packs = pack_documents(tokens, images, seq_len=SEQ_LEN, max_images=max_images)
    return int(packs.max()) + 1, time.perf_counter() - began


def packing(documents: int) -> None:
    print(f"\n{documents:,} documents; TRL {version('trl')}. Bound: packs needed at least\n")
    print("| mixture | packer | packs | x the bound | documents/s |\n|---|---|---|---|---|")
    our_packs(*lengths("mixed", 300, 0), MAX_IMAGES)  # compiles
    for mixture in MIXTURES:
        tokens, images = lengths(mixture, documents, 0)
        small = np.maximum(1, tokens // 1000)
        for label, limit, (packs, seconds) in (
            ("TRL bfd, by tokens", None, trl_packs(tokens, SEQ_LEN)),
            ("preshard, by tokens", None, our_packs(tokens, images, None)),
            (f"preshard, and {MAX_IMAGES} images", MAX_IMAGES, our_packs(tokens, images, MAX_IMAGES)),
        ):
            least = lower_bound(kinds_of(tokens, images, seq_len=SEQ_LEN, max_images=limit))
            print(f"| {mixture} | {label} | {packs:,} | {packs / least:.5f} | {documents / seconds:,.0f} |")
        _, seconds = trl_packs(small, SEQ_LEN // 1000)
        print(f"| {mixture} | TRL bfd, a token for a thousand | | | {documents / seconds:,.0f} |")


def running_count(loads: np.ndarray, ranks: int) -> np.ndarray:
    """Edges of Molmo2's split: units to a rank until the running count reaches its quota; empty ranks take one unit."""
    totals = np.cumsum(loads)
    edges = [0]
    for rank in range(ranks):
        reached = np.searchsorted(totals, (rank + 1) * totals[-1] / ranks, side="left") + 1
        edges.append(int(min(max(reached, edges[-1]), len(loads))))
    for _ in range(ranks):
        before = list(edges)
        for rank in range(ranks):
            if edges[rank] < edges[rank + 1]:
                continue
            if rank + 2 <= ranks and edges[rank + 2] - edges[rank + 1] >= 2:
                edges[rank + 1] += 1
            elif rank and edges[rank] - edges[rank - 1] >= 2:
                edges[rank] -= 1
        if edges == before:
            break
    return np.array(edges)


def imbalance(loads: np.ndarray, edges: np.ndarray) -> float:
    sums = np.diff(np.concatenate([[0], np.cumsum(loads)])[edges])
    return float(sums.max() / sums.mean())


def packs_of_units(kind: str, count: int) -> list[np.ndarray]:
    """Crops of each unit of some packs: frames are one crop, photographs 1 to 12 tiles and a thumbnail."""
    rng = np.random.default_rng(0)
    packs = []
    for _ in range(count):
        stills = rng.integers(1, 13, rng.integers(8, 60))
        stills = stills + (stills > 1)
        frames = np.ones(rng.integers(60, 385), np.int64)
        units = {"frames": [frames], "photographs": [stills], "both": [stills, frames, stills[::-1]]}[kind]
        packs.append(np.concatenate(units))
    return packs


def halves(loads: np.ndarray, ranks: int) -> np.ndarray:
    """An order of halves of halves: units by falling load, each to the lighter half, and again inside of each."""

    def halved(units: np.ndarray, parts: int) -> np.ndarray:
        if parts == 1 or len(units) < 2:
            return np.sort(units)
        sums, sides = [0, 0], ([], [])
        for unit in units[np.argsort(-loads[units], kind="stable")]:
            side = int(sums[1] < sums[0])
            sums[side] += loads[unit]
            sides[side].append(unit)
        return np.concatenate([halved(np.array(side, np.int64), parts // 2) for side in sides])

    return halved(np.arange(len(loads)), ranks)


CP_SIZES = (1, 2, 4, 8, 16)


def splitting(count: int = 300) -> None:
    print(f"\nimbalance of images over ranks (largest / mean), {count} packs a row: mean (worst)\n")
    print("| units | ranks | Molmo2's running count | order of tokens | halves of halves | preshard | bound | crops |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in ("frames", "photographs", "both"):
        packs = packs_of_units(kind, count)
        stored = [loads[balanced_order(loads, CP_SIZES)] for loads in packs]
        orders = [loads[halves(loads, max(CP_SIZES))] for loads in packs]
        crops = [np.ones(loads.sum(), np.int64) for loads in packs]
        for ranks in (4, 8, 16):
            found = [[imbalance(loads, running_count(loads, ranks)) for loads in packs]]
            for each in (packs, orders, stored):
                found.append([imbalance(loads, image_edges(loads, ranks)) for loads in each])
            found.append([ranks * max(loads.max(), -(-loads.sum() // ranks)) / loads.sum() for loads in packs])
            found.append([imbalance(loads, image_edges(loads, ranks)) for loads in crops])
            assert all(ours <= theirs for ours, theirs in zip(found[3], found[1], strict=True)), "worse than tokens"
            print(f"| {kind} | {ranks} |", " | ".join(f"{np.mean(row):.3f} ({max(row):.3f})" for row in found), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, default=20_000)
    given = parser.parse_args()
    datasets.disable_progress_bars()
    print(hardware())
    packing(given.documents)
    splitting()


if __name__ == "__main__":
    main()

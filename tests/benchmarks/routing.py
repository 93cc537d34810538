"""Cost and gain of the stored order of units: features that change rank, beside the encoder's work.

    python tests/benchmarks/routing.py [--packs 20] [--ring 8]

Packs of photographs of 1 to 12 tiles and a thumbnail, each with a question and an answer of some hundred tokens, for an
encoder that keeps a photograph whole. A row is a feature that fills one token. "Moved" are the rows whose token another
rank holds, of all; "most" the rows that the busiest rank receives, of its even share. Saved is the largest load of a
rank, and cost what the busiest rank receives more, both of an even share of the encoder's work: 16 bits a number, there
and back, at the link and the speed of the default cost model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from machine import hardware

from preshard.packer_service.layout.solve import solve_layouts
from preshard.packer_service.layout.unit_order import balanced_order
from preshard.packer_service.plan.cost import CostModel
from preshard.schemas.boundaries import image_edges
from preshard.schemas.config import PackConfig
from preshard.schemas.layout import SCHEMES, TokenLayout, segment_edges, slice_positions
from preshard.schemas.sequence import MaskArrays

SEQ_LEN, ALIGNMENT = 36_864, 32
ROWS = 196
"""Rows of a crop of 27 x 27 patches in windows of 2 x 2: as in Molmo2."""


def photographs(rng: np.random.Generator) -> tuple[MaskArrays, np.ndarray, np.ndarray, np.ndarray]:
    """A pack's mask, the edges of its segments, the crops of each unit, and the tokens that its rows fill."""
    doc_ids = np.full(SEQ_LEN, -1, np.int32)
    crops, firsts, starts, lengths, at = [], [], [], [], 0
    while True:
        tiles = int(rng.integers(1, 13))
        count = tiles + (tiles > 1)
        length = count * ROWS + int(rng.integers(50, 600))
        if at + length > SEQ_LEN:
            break
        crops.append(count)
        firsts.append(at + 10)
        starts.append(at)
        lengths.append(-(-length // ALIGNMENT) * ALIGNMENT)
        doc_ids[at : at + length] = len(crops) - 1
        at += lengths[-1]
    filled = np.concatenate([np.arange(first, first + n * ROWS) for first, n in zip(firsts, crops, strict=True)])
    nothing = np.zeros(SEQ_LEN, np.int32)
    mask = MaskArrays(doc_ids=doc_ids, branch_ids=nothing, group_ids=nothing - 1)
    return mask, segment_edges(np.array(starts), np.array(lengths), SEQ_LEN), np.array(crops), filled


def received(layout: TokenLayout, crops: np.ndarray, filled: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Rows that each rank receives from others."""
    holder, maker = np.empty(SEQ_LEN, np.int64), np.empty(len(crops), np.int64)
    for rank in range(layout.ring_degree):
        holder[slice_positions(layout.runs, rank)] = rank
    maker[order] = np.repeat(np.arange(layout.ring_degree), np.diff(image_edges(crops[order], layout.ring_degree)))
    made, held = np.repeat(maker, crops * ROWS), holder[filled]
    return np.bincount(held[made != held], minlength=layout.ring_degree)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--packs", type=int, default=20)
    parser.add_argument("--ring", type=int, default=8)
    given = parser.parse_args()
    rng, ring, model = np.random.default_rng(0), given.ring, CostModel.of(PackConfig())
    price = model.vision_work_per_sent_number * model.model.hidden_size / model.vision_work_per_crop
    print(hardware())
    print(f"{given.packs} packs of {SEQ_LEN:,} tokens, {ring} ranks; a sent row costs {price:.5f} of a crop's work\n")
    print("| layout | moved, order of tokens | moved, stored order | most, of tokens | most, stored | saved | cost |")
    print("|---|---|---|---|---|---|---|")
    found: dict[str, list[list[float]]] = {scheme: [] for scheme in SCHEMES}
    for _ in range(given.packs):
        mask, edges, crops, filled = photographs(rng)
        stored = balanced_order(crops, (1, 2, 4, 8, 16))
        share = crops.sum() / ring
        orders = (np.arange(len(crops)), stored)
        most = [np.add.reduceat(crops[o], image_edges(crops[o], ring)[:-1]).max() / share for o in orders]
        for layout in solve_layouts(mask, segment_edges=edges, schemes=SCHEMES, ring_degrees=[ring]):
            here, there = (received(layout, crops, filled, order) for order in orders)
            rows, cost = len(filled), (there.max() - here.max()) * price / share
            moved = [here.sum() / rows, there.sum() / rows, here.max() * ring / rows, there.max() * ring / rows]
            found[layout.scheme].append([*moved, most[0] - most[1], cost])
    for scheme, rows in found.items():
        print(f"| `{scheme}` |", " | ".join(f"{value:.3f}" for value in np.mean(rows, axis=0)), "|")


if __name__ == "__main__":
    main()

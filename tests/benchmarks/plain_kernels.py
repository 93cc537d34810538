"""Length of a document above which a kernel of variable length would take less time than FlexAttention on tiles.

    python tests/benchmarks/plain_kernels.py [docs/gpu/2026-11-27-h200]

A kernel without a mask needs slices that are plain sequences, so zigzag: each rank has two chunks of each document, of
a (2 x ranks)-th of it. FlexAttention computes an even share of the document's tiles. Both take whole tiles of 128, at
the speeds measured for one causal document of 36,864 tokens. Launches, exchanges and padding are not counted.
"""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path

TILE = 128
FLEX, OTHERS = "flex", {"varlen_attn": "torch's `varlen_attn`", "sdpa cudnn_attention": "one as fast as cuDNN"}
RANKS = (4, 8, 16, 32)
BACKWARD = 2.5
"""Operations of a backward pass over those of the forward one."""


def speeds(folder: Path) -> dict[str, float]:
    """Operations of a forward and a backward pass by the time of both, by kernel."""
    rows = json.loads((folder / "kernel_beside.json").read_text(encoding="utf-8"))["rows"]
    wanted = [row for row in rows if row["tokens"] == 36_864 and row["tile"] in (0, TILE) and "TFLOP/s fwd" in row]
    return {row["kernel"]: (1 + BACKWARD) / (1 / row["TFLOP/s fwd"] + BACKWARD / row["TFLOP/s bwd"]) for row in wanted}


def balanced_tiles(length: int, ranks: int) -> float:
    """Tiles of a rank that computes an even share of a causal document's."""
    tiles = -(-length // TILE)
    return tiles * (tiles + 1) / 2 / ranks


def zigzag_tiles(length: int, ranks: int) -> int:
    """Tiles of the rank with most, whose two chunks each see all that is before their end."""
    chunk = length // (2 * ranks)
    return max(
        sum(
            -(-min(first + TILE, chunk * (part + 1)) // TILE)
            for part in parts
            for first in range(chunk * part, chunk * (part + 1), TILE)
        )
        for parts in ((rank, 2 * ranks - 1 - rank) for rank in range(ranks))
    )


def shortest(ranks: int, share: float) -> int | None:
    """The length from which zigzag with a kernel takes less time, where FlexAttention has a share of its speed."""
    if share >= 1:
        return None
    steps = (2 * ranks * chunk for chunk in count(1))
    return next(length for length in steps if share * zigzag_tiles(length, ranks) < balanced_tiles(length, ranks))


def main(folder: Path) -> None:
    found = speeds(folder)
    print("| kernel | of FlexAttention's speed | " + " | ".join(f"{ranks} ranks" for ranks in RANKS) + " |")
    print("|---" * (2 + len(RANKS)) + "|")
    for kernel, name in OTHERS.items():
        share = found[FLEX] / found[kernel]
        lengths = [shortest(ranks, share) for ranks in RANKS]
        shown = ["never" if length is None else f"{length:,}" for length in lengths]
        print(f"| {name} | {1 / share:.2f} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "docs" / "gpu" / "2026-11-27-h200"))

"""Prints the tables of docs/gpu.md from the figures that were measured on a GPU.

python tests/gpu/tables.py docs/gpu/2026-11-27-h200
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GATHERED = {"zigzag": "zigzag", "contiguous": "contiguous", "balanced_gather": "balanced"}
MIXTURES = ("many-short-documents", "long-videos", "annotated", "one-long-text")


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    """Rows of one file of figures."""
    rows: list[dict[str, Any]] = json.loads((folder / f"{name}.json").read_text())["rows"]
    return rows


def table(columns: list[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def exactness(folder: Path) -> str:
    """Cases of attention by dtype, and the largest relative error among them."""
    found = []
    for dtype in ("float32", "bfloat16"):
        rows = read(folder, f"attention_exact_{dtype}")
        worst = max(row[name] for row in rows for name in ("out", "dq", "dk", "dv", "dsinks") if name in row)
        found.append([dtype, len(rows), sum(row["verdict"] != "ok" for row in rows), f"{worst:.1e}"])
    return table(["dtype", "cases", "apart", "largest error"], found)


def layouts(folder: Path) -> str:
    """Milliseconds of the slowest rank's attention in one layer, forward and backward."""
    found = []
    for tokens in ("36864", "131072"):
        rows = [row for row in read(folder, f"kernel_layouts_{tokens}") if row["how"] == "gather"]
        for packs in MIXTURES:
            for ranks in (8, 16):
                of_case = {r["layout"]: r for r in rows if (r["packs"], r["R"]) == (packs, ranks)}
                if not of_case.keys() >= GATHERED.keys():
                    continue
                times = {short: of_case[name]["fwd ms"] + of_case[name]["bwd ms"] for name, short in GATHERED.items()}
                shown = [f"{each:.1f}" for each in times.values()]
                gain = f"{times['zigzag'] / times['balanced']:.2f}"
                found.append([f"{int(tokens):,}", packs.replace("-", " "), ranks, *shown, gain])
    return table(["tokens", "packs", "ranks", *GATHERED.values(), "zigzag / balanced"], found)


def kernels(folder: Path) -> str:
    """Kernels beside each other on one causal document."""
    rows = [row for row in read(folder, "kernel_beside") if "fwd ms" in row and row["tile"] in (0, 128)]
    shown = [row for row in rows if "call" not in row["kernel"] and "part" not in row["kernel"]]
    return table(
        ["tokens", "kernel", "TFLOP/s forward", "TFLOP/s backward"],
        ([f"{r['tokens']:,}", r["kernel"], *(f"{r[f'TFLOP/s {way}']:.0f}" for way in ("fwd", "bwd"))] for r in shown),
    )


def steps(folder: Path) -> str:
    """Steps of one rank: seconds, and memory beside what was expected of it."""
    found = []
    for row in read(folder, "step"):
        kinds = row["profile"]["kernel kinds"]
        seconds, flex = f"{row['s a step']:.2f}", f"{kinds['flex']:.0f}"
        memory = [f"{row[name]:.1f}" if row.get(name) else "" for name in ("peak GiB", "dry run", "estimate")]
        found.append([row["case"], "yes" if row.get("modes") else "", seconds, flex, f"{row['MFU']:.2f}", *memory])
    columns = ["case", "torch's modes", "seconds", "attention, ms", "MFU", "GiB", "dry run", "estimate"]
    return table(columns, found)


def main(folder: Path) -> None:
    """Prints all tables."""
    for made in (exactness, layouts, kernels, steps):
        print(f"{(made.__doc__ or '').splitlines()[0]}\n\n{made(folder)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Packs small datasets of every family, form and layout, and compares the SHA-256 of their shards with those pinned.

    python tests/golden/shards.py             compares, names what differs, and exits with status 1 if anything does
    python tests/golden/shards.py --write     pins what is written now
    python tests/golden/shards.py --only split  takes the datasets whose names contain a word

Bytes of pictures depend on the packages that decode, scale and compress them, so this is no test: run it before and
after a change that must not change a byte, on one machine. A minute on two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "job"), str(HERE)]

from repacked import KINDS, make_source, packed, rejects, write_rows  # noqa: E402
from test_forms import FORMS, picture  # noqa: E402
from test_plans import plan  # noqa: E402

PINNED = HERE / "shards.json"
WHOLE = ["seq_len=4096"]
STILLS = ("qwen3_vl", "qwen2_5_vl", "internvl")
"""Families whose stills have two backends."""
SHORT = "seq_len=512"
SHORTER = "seq_len=128"
"""Length for the generic family, whose documents have fewer tokens."""
VARIANTS: dict[str, list[str]] = {
    "layouts": ["ring_degrees=[1,2,4]", "cp_sizes=[1,2,3,4]", "seq_len=6144"],
    "contiguous": ["layouts=[contiguous]", "ring_degrees=[2]"],
    "zigzag": ["layouts=[zigzag]", "ring_degrees=[2,4]"],
    "balanced": ["layouts=[balanced_ring,balanced_gather]", "ring_degrees=[4]", "block_size=32"],
    "unweighted": ["annotation_weight=none"],
    "split": [SHORT, "oversize=split"],
    "truncated": [SHORT, "oversize=truncate"],
    "rejected": [SHORT],
    "patches": ["max_patches=2048", "max_images=12", "oversize=split"],
    "mixture": ["mixture={mixed: 0.6, default: 2.5}", "epochs=3", "order.seed=7"],
    "last": ["turns=last"],
    "each": ["turns=each"],
    "jpeg": ["image_format=jpeg", "jpeg_quality=80", "packs_per_shard=1"],
}
"""Settings of each kind of dataset beside the usual settings."""
VARIED = ("square", "qwen3", "qwen3_vl")
"""Kinds that are packed in every variant."""


def made(folder: Path, only: str) -> Iterator[tuple[str, Path]]:
    """Every dataset with its name, one at a time."""
    for kind in KINDS:
        settings = [*make_source(folder / kind, kind), *WHOLE]
        variants: dict[str, list[str]] = {"plain": []}
        if kind in VARIED:
            variants |= VARIANTS
        else:
            variants |= {name: VARIANTS[name] for name in ("split", "layouts")}
        if kind in STILLS:
            variants["pil"] = ["images.backend=pil"]
        for name, given in variants.items():
            more = [SHORTER if kind == "square" and each == SHORT else each for each in given]
            label = f"{kind}/{name}"
            again = {f"{label}/again": ["seq_len=6144"]} if name in ("plain", "split", "mixture") else {}
            if not any(only in each for each in (label, *again)):
                continue
            first = packed(folder / kind / "source", folder / kind / name, [*settings, *more])
            yield label, first
            for repacking, settings_again in again.items():
                yield repacking, packed(first, folder / kind / f"{name}-again", settings_again)
    for form, (row, _, _) in FORMS.items():
        if only in f"form/{form}":
            yield (
                f"form/{form}",
                packed(write_form(folder / "forms" / form, row), folder / "forms" / f"{form}-out", FORM),
            )


FORM = [
    *("seq_len=2048", "vision.image_size=28", "vision.pool_size=2", "layouts=[contiguous]"),
    *("cp_sizes=[1]", "ring_degrees=[1]", "max_images=null"),
]


def write_form(source: Path, row: dict[str, object]) -> Path:
    source.mkdir(parents=True)
    for number in range(2):
        (source / f"{number}.png").write_bytes(picture(number))
    write_rows(source, [{"id": f"row {number}", **row} for number in range(3)])
    return source


def digest(dataset: Path) -> str:
    """SHA-256 over the names and bytes of a dataset's shards and the documents that it rejects."""
    found = hashlib.sha256()
    for path in sorted((dataset / "shards").iterdir()):
        found.update(path.name.encode() + path.read_bytes())
    found.update(json.dumps(sorted(rejects(dataset))).encode())
    return found.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares the shards of small datasets with those pinned.")
    parser.add_argument("--write", action="store_true", help="pin what is written now")
    parser.add_argument("--only", default="", help="datasets whose names contain this")
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, dataset in made(Path(folder), given.only):
            found[name] = digest(dataset)
            print(name, found[name][:16], flush=True)
    if given.only in "plan":
        found["plan"] = hashlib.sha256(plan(1_000_000, 384).astype("<i8").tobytes()).hexdigest()
        print("plan", found["plan"][:16])
    pinned = json.loads(PINNED.read_text(encoding="utf-8"))
    if given.write:
        kept = pinned if given.only else {}
        PINNED.write_text(json.dumps({**kept, **found}, indent=1) + "\n", encoding="utf-8")
        return 0
    differ = [name for name, value in found.items() if pinned.get(name) != value]
    missing = [name for name in pinned if given.only in name and name not in found]
    print(f"{len(found)} compared, {len(differ)} differ, {len(missing)} missing", *differ, *missing, sep="\n  ")
    return 1 if differ or missing else 0


if __name__ == "__main__":
    sys.exit(main())

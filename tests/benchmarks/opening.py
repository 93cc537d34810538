"""Opens a dataset of ten million packs as a rank does: seconds, memory, and what looking up packs costs.

    python tests/benchmarks/opening.py [--packs 10000000] [--packs-per-shard 16] [--workers 4] [--folder FOLDER] [--s3]
    python tests/benchmarks/opening.py --packs-per-shard 256     # 39,000 shards
    python tests/benchmarks/opening.py --packs-per-shard 256 --s3

It writes the manifest and ``packs.parquet`` of such a dataset, without its shards, and keeps them in FOLDER if that is
given. Everything is measured in a process of its own, whose temporary folder is empty at first: the first process
decodes what it looks up, the second one finds it done. Workers look up packs by chance. Memory is the process's
highest, and its anonymous part, which is its own and not a file's that others share; "before" is after the imports.
With ``--s3`` the dataset lies in an S3 server on this machine, which answers at once but sends no more than one process
of Python can.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from machine import hardware  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: E402

from preshard.trainer.data.dataset import PackedDataset  # noqa: E402

GROUP_ROWS = 65_536
SAMPLE_BYTES = 11_000_000
LOOKUPS = 20_000


def write_dataset(folder: Path, packs: int, per_shard: int) -> None:
    """Manifest and ``packs.parquet``, with values of the sizes that a run over video has."""
    from preshard.schemas.config import PackConfig
    from preshard.schemas.dataset.manifest_parts import manifest_parts
    from preshard.schemas.encode import encode_json
    from preshard.schemas.manifest import (
        FORMAT_VERSION,
        TABLE_FILES,
        Counts,
        FiguresEntry,
        ManifestHead,
        ShardEntry,
        TableEntry,
        TokenizerEntry,
    )

    digest, size = write_packs(folder / "packs.parquet", packs, per_shard)
    config = PackConfig(packs_per_shard=per_shard)
    head = ManifestHead(
        format_version=FORMAT_VERSION,
        dataset_id="0" * 64,
        preshard_version="0",
        config=config.model_dump(mode="json"),
        tokenizer=TokenizerEntry(
            name="none", sha256="0" * 64, vocab_size=9, bos_id=None, eos_id=1, pad_id=2, image_id=3,
            chat_template_sha256=None,
        ),
        model=None,
        sources=["clips.jsonl"],
        unused_columns={},
        unread_files={},
        filtered={},
        phases=[],
        counts=Counts(**{name: 0 for name in Counts.model_fields if name != "packs"}, packs=packs),
        tables=[TableEntry(name=name, bytes=size, sha256=digest, rows=packs) for name in TABLE_FILES],
        figures=FiguresEntry(bytes=0, sha256="0" * 64),
        carried=[],
    )  # fmt: skip
    shards = (
        encode_json(
            ShardEntry(
                name=f"preshard-{number:06d}.tar",
                bytes=SAMPLE_BYTES * per_shard,
                sha256=f"{number:064x}",
                packs=min(per_shard, packs - number * per_shard),
                first_pack=number * per_shard,
            )
        )
        for number in range(-(-packs // per_shard))
    )
    with (folder / "manifest.json").open("wb") as file:
        for part in manifest_parts(head, shards):
            file.write(part)


def write_packs(path: Path, packs: int, per_shard: int) -> tuple[str, int]:
    """Hash and size of the table."""
    import hashlib

    from preshard.schemas.tables import PACKS

    rng = np.random.default_rng(0)
    with pq.ParquetWriter(path, PACKS, compression="zstd") as writer:
        for first in range(0, packs, GROUP_ROWS):
            ids = np.arange(first, min(first + GROUP_ROWS, packs))
            sizes = rng.integers(SAMPLE_BYTES // 1024, SAMPLE_BYTES // 512, len(ids)) * 512
            ends = np.cumsum(sizes)
            begun = np.maximum(ids // per_shard * per_shard - first, 0)
            columns: dict[str, Any] = {
                "pack_id": ids,
                "key": [f"{i:010d}" for i in ids],
                "shard": [f"preshard-{i // per_shard:06d}.tar" for i in ids],
                "index_in_shard": ids % per_shard,
                "offset": ends - sizes - (ends - sizes)[begun],
                "header_size": rng.integers(160, 200, len(ids)) * 512,
                "head_crc32c": rng.integers(0, 2**32, len(ids)),
                "size": sizes,
                "cost": rng.random(len(ids)) * 1e6,
            }
            arrays = [
                pa.array(columns[field.name] if field.name in columns else rng.integers(0, 2**20, len(ids)), field.type)
                for field in PACKS
            ]
            writer.write_table(pa.table(arrays, schema=PACKS))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size


def memory() -> dict[str, int]:
    """This process's memory in MiB: now, at its highest, and what is no file's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    names = {"VmRSS": "now", "VmHWM": "peak", "RssAnon": "anonymous"}
    found = {line.partition(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith(tuple(names))}
    return {shown: int(found[name]) // 1024 for name, shown in names.items()}


def microseconds(dataset: PackedDataset, pack_ids: np.ndarray) -> float:
    """Processor time of looking up a pack."""
    packs = dataset.readers[0].packs
    began = time.process_time()
    for pack_id in pack_ids.tolist():
        assert packs[pack_id].size
    return (time.process_time() - began) * 1e6 / len(pack_ids)


def measure(folder: str, *, resumed: bool) -> dict[str, Any]:
    """Measures what one process needs from opening a dataset to the place of its first pack."""
    before = memory()
    began, clock = time.process_time(), time.perf_counter()
    dataset = PackedDataset(folder)
    seconds, elapsed = time.process_time() - began, time.perf_counter() - clock
    opened = memory()
    n_packs, began = dataset.n_packs, time.process_time()
    if resumed:
        dataset.load_state_dict({**dataset.state_dict(), "epoch": 3, "position": n_packs // 2})
    position = dataset.state_dict()
    _, pack_id = dataset._order.place(position["epoch"], position["position"])
    ordered = time.process_time() - began
    first = microseconds(dataset, np.array([pack_id]))
    return {
        "open, s of the processor": round(seconds, 3),
        "open, s of the clock": round(elapsed, 3),
        "MiB before": before,
        "MiB opened": opened,
        "the next pack's number, ms": round(ordered * 1000, 1),
        "first lookup, ms": round(first / 1000, 1),
        "MiB in the end": memory(),
    }


class Lookups(IterableDataset[dict[str, Any]]):
    """Looks up packs in each worker, and gives what it cost."""

    def __init__(self, dataset: PackedDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        by_chance = np.random.default_rng(worker.id if worker else 0).integers(0, self.dataset.n_packs, LOOKUPS)
        cost = round(microseconds(self.dataset, by_chance), 1)
        yield {"lookup by chance, us": cost, "MiB in the end": memory()}


def measure_workers(folder: str, workers: int) -> dict[str, Any]:
    """Measures what each worker of a loader needs, and how many bytes it is sent."""
    import pickle

    dataset = PackedDataset(folder)
    loader = DataLoader(Lookups(dataset), batch_size=None, num_workers=workers, multiprocessing_context="spawn")
    found = list(loader)
    return {
        "bytes sent to a worker": len(pickle.dumps(dataset)),
        **{name: [worker[name] for worker in found] for name in found[0]},
        "MiB of the loader's process": memory(),
    }


def run(folder: str, temporary: str, *arguments: str) -> None:
    """Measures in a new process, and prints what it says."""
    command = [sys.executable, __file__, "--measure", folder, *arguments]
    environment = {**os.environ, "TMPDIR": temporary, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
    for name, value in json.loads(answer).items():
        print(f"  {name:<28} {value}")
    sys.stdout.flush()


def in_s3(stack: ExitStack, folder: Path) -> Any:
    """A server of the folder that ends with the stack: where it is, and what it was asked for."""
    sys.path.append(str(Path(__file__).parents[1] / "s3"))
    from range_server import served_ranges

    return stack.enter_context(served_ranges(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=10_000_000)
    parser.add_argument("--packs-per-shard", type=int, default=16)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--s3", action="store_true", help="opens it in an S3 server on this machine")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--resumed", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        workers, place = given.workers, given.measure
        found = measure_workers(place, workers) if workers else measure(place, resumed=given.resumed)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = given.folder or Path(scratch) / "dataset"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "manifest.json").exists():
            write_dataset(folder, given.packs, given.packs_per_shard)
        sizes = {path.name: path.stat().st_size // 2**20 for path in sorted(folder.iterdir())}
        print(f"{hardware()}; {given.packs:,} packs, {given.packs_per_shard} per shard; MiB: {sizes}")
        server = in_s3(stack, folder) if given.s3 else None
        location = server.uri if server else str(folder)
        temporary = Path(scratch) / "tmp"
        temporary.mkdir()
        for title, workers in (
            ("the first process", 0),
            ("the second", 0),
            ("resumed in the middle of epoch 3, on another node", 0),
            (f"{given.workers} workers", given.workers),
        ):
            print(title)
            if title.startswith("resumed"):  # as on another node
                for path in temporary.rglob("*.places-*"):
                    path.unlink()
            run(location, str(temporary), "--workers", str(workers), *["--resumed"] * title.startswith("resumed"))
            if server:
                print(f"  asked of the store: {server.take()}")
        used = sum(path.stat().st_blocks * 512 for path in temporary.rglob("*") if path.is_file())
        print(f"the file that they share: {used / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()

"""Batches a second of a dataset of ten million packs, and of one of a thousand, in turns.

    python tests/benchmarks/many_packs.py [--packs 10000000] [--sample demo/dataset] [--steps 300] [--rounds 3]

Every pack is a copy of the sample's smallest one with a crop for each rank, under another number, so that both datasets
have the same batches. Of the packs that are read, what the rank reads is written, at its place in shards of 256; the
others are rows of ``packs.parquet``. Each turn is a process of its own with its own temporary folder, as a rank of 8 on
a host where nobody has read the dataset before. What comes before the timed steps, the first batches and the start of
workers, is left out of the time. Processor time is that of the process and its workers. In the end a process without
workers reads the large dataset from an S3 server on this machine, and what it asks for is printed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from machine import hardware  # noqa: E402
from opening import in_s3, write_dataset  # noqa: E402

from preshard.packer_service.packs.crop import Crop  # noqa: E402
from preshard.packer_service.shards.write import Sample, SamplePlace, encode_sample  # noqa: E402
from preshard.schemas.codec import image_member, shard_name  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.manifest import SHARDS  # noqa: E402
from preshard.trainer.data.dataset import PackedDataset  # noqa: E402
from preshard.trainer.data.loader import PREFETCH, make_loader  # noqa: E402
from preshard.trainer.data.order import EpochOrder  # noqa: E402
from preshard.trainer.data.split import (  # noqa: E402
    crop_edges,
    plan_split,
    read_header,
)
from tests.support.served import processor_seconds  # noqa: E402

FEW = 1_000
PER_SHARD = 256
CP_SIZE, CP_RANK = 8, 4
BATCHES_BEFORE = 16
"""Not timed: enough that each of four workers has given what it read ahead, ``PREFETCH`` batches each, twice."""


def taken_sample(dataset: Path) -> tuple[Sample, PackConfig]:
    """The smallest pack of a dataset that has a crop for each rank, and the dataset's configuration."""
    opened = PackedDataset(dataset)
    files, config = opened.files, opened.config
    packs = files.packs()
    for place in sorted((packs[pack_id] for pack_id in range(len(packs))), key=lambda place: place.size):
        header = read_header(files, place, config, files.manifest.axes)
        if len(header.head.units) >= CP_SIZE:
            break
    else:
        sys.exit(f"--sample is {dataset}; none of its packs has {CP_SIZE} images or frames: take another dataset")
    with tarfile.open(dataset / SHARDS / place.shard) as tar:
        contents = {member.name: tar.extractfile(member) for member in tar}
        crops = [
            Crop(
                doc_id=image.doc_id,
                unit=image.unit,
                width=image.width,
                height=image.height,
                timestamp=image.timestamp,
                data=contents[image_member(place.key, number, config.image_format)].read(),  # type: ignore[union-attr]
            )
            for number, image in enumerate(header.head.images)
        ]
    sample = Sample(head=header.head, sequence=header.sequence, layouts=list(header.layouts.values()), crops=crops)
    return sample, config


def write_copies(folder: Path, sample: Sample, config: PackConfig, packs: int, steps: int) -> None:
    """A dataset in which the packs of an epoch's first steps are copies of the rank's part of the sample."""
    split = plan_split(config, layout="contiguous", ring_degree=1, ulysses_degree=CP_SIZE)
    mine = crop_edges(sample.head, split, "the sample").crops[CP_RANK : CP_RANK + 2]
    begin, end = (sample.head.images[number].offset for number in mine)  # a rank in the middle, so one follows
    order = EpochOrder(packs, window=config.order.window, seed=0, epoch=0)
    places: dict[int, SamplePlace] = {}
    (folder / SHARDS).mkdir(parents=True)
    slot = encode_sample(sample, config.image_format).place(0).size + 2**20
    for pack_id in order.packs_at(np.arange(min(steps, packs))).tolist():
        head = sample.head.model_copy(update={"pack_id": pack_id})
        copy = Sample(head=head, sequence=sample.sequence, layouts=sample.layouts, crops=sample.crops)
        encoded = encode_sample(copy, config.image_format)
        places[pack_id] = encoded.place(pack_id % PER_SHARD * slot)
        file = os.open(folder / SHARDS / shard_name(pack_id // PER_SHARD), os.O_WRONLY | os.O_CREAT)
        os.pwrite(file, encoded.header, places[pack_id].offset)
        os.pwrite(file, b"".join(encoded.crops)[begin:end], places[pack_id].offset + len(encoded.header) + begin)
        os.close(file)
    write_dataset(folder, packs, PER_SHARD, config, places)


def measure(location: str, workers: int, steps: int) -> dict[str, float]:
    """Batches a second by the clock, and processor time of each."""
    torch.set_num_threads(1)
    dataset = PackedDataset(location, ulysses_degree=CP_SIZE, cp_rank=CP_RANK)
    batches = iter(make_loader(dataset, workers=workers, device="cpu"))
    sums = sum(int(batch.tokens.sum()) for batch in islice(batches, BATCHES_BEFORE))
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
    began, clock = sum(map(processor_seconds, pids)), time.perf_counter()
    sums += sum(int(batch.tokens.sum()) for batch in islice(batches, steps))
    elapsed, used = time.perf_counter() - clock, sum(map(processor_seconds, pids)) - began
    return {"batches/s": steps / elapsed, "ms of processor": used / steps * 1000, "sum": sums}


def print_requests(server: Any, steps: int) -> None:
    """What a process without workers asks of the store, from opening on."""
    dataset = PackedDataset(server.uri, ulysses_degree=CP_SIZE, cp_rank=CP_RANK)
    print(f"opened: {server.take()}")
    batches = iter(dataset)
    next(batches)
    print(f"first batch: {server.take()}")
    for _ in islice(batches, steps - 1):
        pass
    print(f"the next {steps - 1}: {server.take()}")


def run(location: Path, workers: int, steps: int) -> dict[str, float]:
    """Measures in a new process with an empty temporary folder."""
    words = [sys.executable, __file__, "--measure", str(location), "--workers", str(workers), "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as temporary:
        environment = {**os.environ, "TMPDIR": temporary, "OMP_NUM_THREADS": "1"}
        answer = subprocess.run(words, stdout=subprocess.PIPE, check=True, env=environment).stdout
    found: dict[str, float] = json.loads(answer)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=10_000_000)
    parser.add_argument("--sample", type=Path, default=Path("demo/dataset"), help="where the pack is taken from")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 4])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(measure(given.measure, given.workers[0], given.steps)))
        return
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        sample, config = taken_sample(given.sample)
        written = BATCHES_BEFORE + given.steps + 2 * PREFETCH * max(given.workers)
        if written > FEW:
            sys.exit(f"--steps is {given.steps}; the small dataset has {FEW} packs: take fewer")
        folders = {packs: Path(scratch) / str(packs) for packs in (FEW, given.packs)}
        for packs, folder in folders.items():
            write_copies(folder, sample, config, packs, written)
        print(f"{hardware()}, load {os.getloadavg()[0]:.1f}; packs of {len(sample.crops)} crops, rank of {CP_SIZE}")
        for workers in given.workers:
            found: dict[int, list[dict[str, float]]] = {packs: [] for packs in folders}
            for turn in range(given.rounds):
                for packs in sorted(folders, reverse=turn % 2 == 1):
                    found[packs].append(run(folders[packs], workers, given.steps))
            assert len({each["sum"] for rounds in found.values() for each in rounds}) == 1
            for packs, rounds in found.items():
                rate, cost = ([each[name] for each in rounds] for name in ("batches/s", "ms of processor"))
                print(
                    f"{workers} workers, {packs:>10,} packs: {statistics.median(rate):6.1f} batches/s "
                    f"({min(rate):.1f} to {max(rate):.1f}), {statistics.median(cost):.2f} ms of processor each "
                    f"({min(cost):.2f} to {max(cost):.2f})",
                    flush=True,
                )
        tempfile.tempdir = scratch  # where no other run has left the places of the packs
        print_requests(in_s3(stack, folders[given.packs]), given.steps)


if __name__ == "__main__":
    main()

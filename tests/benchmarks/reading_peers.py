"""Reads the same packs by other people's readers: what each asks of a store, and what it costs a process.

``reading.py`` starts it. Packs are written once into each reader's own format, whole, as its users write samples: the
three members of a head as text and bytes, the pictures as a list of JPEG files, shards of the reader's own size. Lance
has the pictures of a pack as one blob, of which a range can be read. The rest reads all of a sample, as none of these
formats knows ranks. webdataset and Energon read the dataset's own shards. Decoding is the same for all: the crops that
the rank needs, by Pillow; once webdataset's own decoder, which decodes them all.

Each reader runs in a process of its own on one core, without workers, over an S3 server in the process that started it,
which counts requests and bytes; webdataset reads the same objects by HTTP, through curl.
Processor time is that of the process and what it starts. It reads all packs twice, each time opened anew with an empty
cache: the first time says when the first batch is there, with modules imported that the package imports by itself and
packs read ahead; the second time says how many packs a second of processor time reads.

    pip install mosaicml-streaming litdata pylance megatron-energon multi-storage-client s3fs
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import subprocess
import sys
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import numpy as np  # noqa: E402
import webdataset as wds  # noqa: E402
from machine import cpu_seconds  # noqa: E402
from PIL import Image  # noqa: E402

from preshard.schemas.layout import rank_positions  # noqa: E402

HEAD = ("json", "sequence.npz", "layouts.npz")
Part = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rank, and where a store has what was written for its reader.

    Attributes:
        uri: where preshard's reader finds it; ``s3`` and ``http`` are for others.
        cache: an empty folder.
        names: files that were written.
    """

    cp_size: int
    rank: int
    uri: str
    s3: str
    http: str
    endpoint: str
    cache: str
    names: list[str]

    def part(self, head: Any, sequence: Any, layouts: Any, crops: Callable[[int, int], list[Any]]) -> Part:
        """Tokens and pixels of this rank, of the members of a head and of what gives crops by their number."""
        described = json.loads(head)
        cut = np.load(io.BytesIO(layouts))["contiguous.ring1"]
        place = rank_positions(cut, ring_rank=0, ulysses_degree=self.cp_size, ulysses_rank=self.rank)
        mine = described["image_shard_boundaries"][str(self.cp_size)][str(self.rank)]
        files = crops(mine["start_image_idx"], mine["end_image_idx"])
        arrays = np.load(io.BytesIO(sequence))
        tokens = {name: arrays[name] for name in arrays.files}["tokens"]
        return tokens[place], np.stack([pixels(file) for file in files])

    def of_sample(self, sample: dict[str, Any]) -> Part:
        """The same of a sample with all of its pictures."""
        return self.part(*(sample[name] for name in HEAD), lambda start, end: sample["crops"][start:end])


def samples(dataset: Path) -> Iterator[dict[str, Any]]:
    """Packs as others store them."""
    for sample in wds.WebDataset(sorted(map(str, (dataset / "shards").glob("*.tar"))), shardshuffle=False):
        yield {name: sample[name] for name in HEAD} | {"crops": crops_of(sample)}


def pixels(crop: Any) -> np.ndarray:
    return crop if isinstance(crop, np.ndarray) else np.asarray(Image.open(io.BytesIO(crop)))


def crops_of(sample: dict[str, Any]) -> list[Any]:
    return [value for name, value in sorted(sample.items()) if name.endswith(".jpg")]


def with_one_field(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample for formats whose fields are fixed, and hold no list of bytes."""
    return {**sample, "crops": pickle.dumps(sample["crops"])}


def with_crops(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "crops": pickle.loads(sample["crops"])}


class Peer(ABC):
    """A reader. ``packages`` are asked for their versions; what ``modules`` import is not measured."""

    packages: tuple[str, ...]
    modules: tuple[str, ...]

    def write(self, dataset: Path, folder: Path) -> None:
        """Writes the packs into an empty folder; by default the dataset's own shards lie there."""
        for path in (dataset / "shards").glob("*.tar"):
            (folder / path.name).symlink_to(path.resolve())

    @abstractmethod
    def read(self, place: Place) -> Iterator[Part]:
        """Parts of a rank, pack by pack, in any order."""


class Preshard(Peer):
    packages, modules = ("preshard",), ("preshard.data",)

    def write(self, dataset: Path, folder: Path) -> None:
        for path in dataset.iterdir():
            (folder / path.name).symlink_to(path.resolve(), target_is_directory=path.is_dir())

    def read(self, place: Place) -> Iterator[Part]:
        from preshard.data import PackedDataset

        for batch in PackedDataset(place.uri, ulysses_degree=place.cp_size, cp_rank=place.rank):
            yield batch.tokens.numpy(), batch.images.numpy()


class Lance(Peer):
    packages, modules = ("pylance",), ("lance",)

    def write(self, dataset: Path, folder: Path) -> None:
        import lance
        import pyarrow as pa

        columns: dict[str, list[Any]] = {name: [] for name in (*HEAD, "ends", "crops")}
        for sample in samples(dataset):
            for name in HEAD:
                columns[name].append(sample[name])
            columns["ends"].append(np.cumsum([len(crop) for crop in sample["crops"]]).tolist())
            columns["crops"].append(b"".join(sample["crops"]))
        arrays = {name: pa.array(columns[name], pa.large_binary()) for name in HEAD}
        table = pa.table(
            {name.replace(".", "_"): array for name, array in arrays.items()}
            | {"ends": columns["ends"], "crops": lance.blob_array(columns["crops"])}
        )
        lance.write_dataset(table, folder / "packs.lance", data_storage_version="2.2")

    def read(self, place: Place) -> Iterator[Part]:
        import lance

        options = {"aws_endpoint": place.endpoint, "allow_http": "true", "aws_region": "us-east-1"}
        dataset = lance.dataset(f"{place.s3}/packs.lance", storage_options=options)
        names = [name.replace(".", "_") for name in HEAD]
        for number in range(dataset.count_rows()):
            row = dataset.take([number], columns=[*names, "ends"]).to_pylist()[0]
            edges, [blob] = [0, *row["ends"]], dataset.take_blobs("crops", indices=[number])

            def crops(start: int, end: int, edges: list[int] = edges, blob: Any = blob) -> list[bytes]:
                data = blob.read_range(edges[start], edges[end] - edges[start])
                at = [edge - edges[start] for edge in edges[start : end + 1]]
                return [data[first:last] for first, last in itertools.pairwise(at)]

            yield place.part(*(row[name] for name in names), crops)


class Streaming(Peer):
    packages, modules = ("mosaicml-streaming",), ("streaming", "boto3")

    def write(self, dataset: Path, folder: Path) -> None:
        from streaming import MDSWriter

        with MDSWriter(out=str(folder), columns=dict.fromkeys((*HEAD, "crops"), "bytes")) as out:
            for sample in samples(dataset):
                out.write(with_one_field(sample))

    def read(self, place: Place) -> Iterator[Part]:
        from streaming import StreamingDataset

        os.environ["S3_ENDPOINT_URL"] = place.endpoint
        for sample in StreamingDataset(remote=place.s3, local=place.cache, shuffle=False, batch_size=1):
            yield place.of_sample(with_crops(sample))


class LitData(Peer):
    packages, modules = ("litdata",), ("litdata", "boto3")

    def write(self, dataset: Path, folder: Path) -> None:
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(folder), chunk_bytes="64MB")
        for number, sample in enumerate(samples(dataset)):
            writer[number] = with_one_field(sample)
        writer.done()
        writer.merge()

    def read(self, place: Place) -> Iterator[Part]:
        from litdata import StreamingDataset
        from litdata.streaming import downloader

        # its second client refuses an endpoint without TLS, and has no setting for it
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
        options = {"endpoint_url": place.endpoint, "region_name": "us-east-1"}
        for sample in StreamingDataset(place.s3, cache_dir=place.cache, storage_options=options):
            yield place.of_sample(with_crops(sample))


class WebDataset(Peer):
    packages, modules = ("webdataset",), ("webdataset",)

    def open(self, place: Place) -> Any:
        tars = [f"{place.http}/{name}" for name in place.names if name.endswith(".tar")]
        return wds.WebDataset(tars, shardshuffle=False)

    def read(self, place: Place) -> Iterator[Part]:
        for sample in self.open(place):
            yield place.of_sample({**sample, "crops": crops_of(sample)})


class DecodedWebDataset(WebDataset):
    """Reader with its own decoder of pictures, which decodes them all."""

    def open(self, place: Place) -> Any:
        return super().open(place).decode("rgb8", post=[], partial=True)


class Energon(Peer):
    packages, modules = ("megatron-energon", "multi-storage-client"), ("megatron.energon", "boto3")

    def write(self, dataset: Path, folder: Path) -> None:
        super().write(dataset, folder)
        options = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
        command = [Path(sys.executable).with_name("energon"), "prepare", *options, "--num-workers", "1", folder]
        subprocess.run(command, check=True, capture_output=True)

    def read(self, place: Place) -> Iterator[Part]:
        from megatron.energon import (
            Cooker,
            DefaultTaskEncoder,
            WorkerConfig,
            get_loader,
            get_val_dataset,
            reraise_exception,
            stateless,
        )

        bucket, _, path = place.s3.removeprefix("s3://").partition("/")
        backend = {"base_path": bucket, "endpoint_url": place.endpoint, "region_name": "us-east-1"}
        profile = {"storage_provider": {"type": "s3", "options": backend}}
        config = Path(place.cache) / "msc.json"
        config.write_text(json.dumps({"profiles": {"store": profile}}), encoding="utf-8")
        os.environ["MSC_CONFIG"] = str(config)

        @stateless
        def cook(sample: Any) -> Any:
            return {**sample, "crops": crops_of(sample)}

        class Packs(DefaultTaskEncoder):
            cookers: ClassVar = [Cooker(cook)]
            decoder = None

        workers = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=reraise_exception)
        whole: Any = {"batch_size": None, "split_part": "train", "worker_config": workers, "task_encoder": Packs()}
        for sample in get_loader(get_val_dataset(f"msc://store/{path}", **whole)):
            yield place.of_sample(sample)


class HuggingFace(Peer):
    packages, modules = ("datasets", "s3fs"), ("datasets", "s3fs")

    def write(self, dataset: Path, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist(list(samples(dataset)))
        # a row group a pack; without a dictionary, which would store the frames that packs here share once
        pq.write_table(table, folder / "packs.parquet", row_group_size=1, use_dictionary=False, compression="none")

    def read(self, place: Place) -> Iterator[Part]:
        from datasets import load_dataset

        options = {"key": "test", "secret": "test", "endpoint_url": place.endpoint}
        files: Any = {"data_files": [f"{place.s3}/packs.parquet"], "storage_options": options}
        for sample in load_dataset("parquet", **files, split="train", streaming=True, cache_dir=place.cache):
            yield place.of_sample(sample)


PEERS: dict[str, Peer] = {
    "preshard": Preshard(),
    "Lance, ranges of blobs": Lance(),
    "MosaicML Streaming": Streaming(),
    "LitData": LitData(),
    "Megatron Energon": Energon(),
    "datasets, Parquet": HuggingFace(),
    "webdataset": WebDataset(),
    "webdataset, all decoded": DecodedWebDataset(),
}


def one_reader(name: str, place: Place) -> None:
    """Runs as a process: reads all packs twice, each time with an empty cache, and prints figures as JSON."""
    import torch

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    for module in PEERS[name].modules:
        import_module(module)
    imported, digests, measured = memory(), list[int](), list[tuple[float, float, float]]()
    for each in ("first", "second"):
        cache = Path(place.cache) / each
        cache.mkdir()
        began, spent, checking, first = time.perf_counter(), cpu_seconds(os.getpid()), 0.0, None
        for tokens, images in PEERS[name].read(replace(place, cache=str(cache))):
            first = first or (cpu_seconds(os.getpid()) - spent, time.perf_counter() - began)
            check = time.thread_time()
            digests.append(zlib.crc32(images, zlib.crc32(tokens.astype(np.int64))))
            checking += time.thread_time() - check
        measured.append((*(first or (0, 0)), cpu_seconds(os.getpid()) - spent - checking))
    figures = {"times": measured, "memory": memory(), "imported": imported, "digests": sorted(digests)}
    print("\n" + json.dumps(figures), flush=True)
    os._exit(0)  # without waiting for threads of the reader


def memory() -> float:
    """MiB that this process held at most, from the system."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    one_reader(sys.argv[1], Place(**json.loads(sys.argv[2])))

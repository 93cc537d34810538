"""Samples that come twice, and never, in an epoch whose loaders are resumed on other numbers of ranks and workers.

    python tests/benchmarks/resuming.py [READER ...] [--samples 203] [--steps 12]

Each reader takes ``--steps`` steps of an epoch on 4 ranks of 2 workers, a sample a rank and step. Its state is then
resumed on as many, on 3 ranks of 1 worker and on 8 of 2, up to the epoch's end. Every rank is a process of its own, in
a group of Gloo as under torchrun, and resumes from its own state; where there are more ranks than states, from rank
0's. LanceDB and Megatron Energon have functions of their own that make new ranks' states of all earlier ones. LanceDB
deals an epoch to parts whose number all shapes must divide, here 48. A reader that is not installed here is left out:

    pip install mosaicml-streaming litdata lancedb pylance megatron-energon webdataset datasets torchdata
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]
sys.path = [each for each in sys.path if Path(each or ".").resolve() != Path(__file__).parent]

FIRST = (4, 2)
THEN = ((4, 2), (3, 1), (8, 2))
SEED, TIMEOUT = 5, 120


@dataclass(frozen=True, kw_only=True)
class Place:
    """A process of a job, and how many samples all have taken before."""

    rank: int
    ranks: int
    workers: int
    taken: int
    samples: int


class Reader(ABC):
    """Reader that is measured: it writes samples, and gives their numbers to a rank."""

    packages: tuple[str, ...]

    @abstractmethod
    def write(self, folder: Path, samples: int) -> None: ...

    @abstractmethod
    def open(self, folder: Path, place: Place) -> Any:
        """A loader with ``state_dict()`` and ``load_state_dict()``, at the beginning."""

    def loader(self, folder: Path, place: Place, state: Any) -> Any:
        """The same, resumed unless the state is None."""
        loader = self.open(folder, place)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def numbers(self, loader: Any, _place: Place) -> Iterator[int]:
        for batch in loader:
            value = batch["number"]
            yield int(value[0] if getattr(value, "ndim", 0) or isinstance(value, list) else value)


class Preshard(Reader):
    packages = ("preshard", "torchdata")

    def write(self, folder: Path, samples: int) -> None:
        from preshard.packer_service.config import load_config
        from preshard.packer_service.job.pack import pack
        from preshard.packer_service.runtime.executors import PlainExecutor
        from preshard.packer_service.runtime.progress import NoProgress

        rows = [{"id": str(number), "text": "long enough to fill a pack " * 100} for number in range(samples)]
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        config = load_config(
            None, ["seq_len=64", "block_size=32", "cp_sizes=[1]", "ring_degrees=[1]", "oversize=truncate"]
        )
        pack([str(folder / "rows.jsonl")], str(folder / "dataset"), config, PlainExecutor(), NoProgress())

    def open(self, folder: Path, place: Place) -> Any:
        return self.loader(folder, place, None)

    def loader(self, folder: Path, place: Place, state: Any) -> Any:
        """The state goes into the dataset, which takes it at any number of ranks and workers."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        from preshard.data import PackedDataset, PackStream

        dataset = PackedDataset(folder / "dataset", dp_rank=place.rank, dp_size=place.ranks, seed=SEED)
        if state is not None:
            dataset.load_state_dict(state)
        return StatefulDataLoader(PackStream(dataset), batch_size=None, num_workers=place.workers)

    def numbers(self, loader: Any, place: Place) -> Iterator[int]:
        """Packs up to the epoch's end; those that fill its last step are the next one's first."""
        for step, batch in enumerate(loader):
            if place.taken + step * place.ranks + place.rank >= place.samples:
                return
            yield batch.pack_id


class Streaming(Reader):
    packages = ("mosaicml-streaming",)

    def write(self, folder: Path, samples: int) -> None:
        from streaming import MDSWriter

        with MDSWriter(out=str(folder / "mds"), columns={"number": "int"}, size_limit=256) as out:
            for number in range(samples):
                out.write({"number": number})

    def open(self, folder: Path, place: Place) -> Any:
        from streaming import StreamingDataLoader, StreamingDataset

        dataset = StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=1, shuffle_seed=SEED)
        return StreamingDataLoader(dataset, batch_size=1, num_workers=place.workers)


class LitData(Reader):
    packages = ("litdata",)

    def write(self, folder: Path, samples: int) -> None:
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(folder / "lit"), chunk_size=10)
        for number in range(samples):
            writer[number] = {"number": number}
        writer.done()
        writer.merge()

    def open(self, folder: Path, place: Place) -> Any:
        from litdata import StreamingDataLoader, StreamingDataset

        dataset = StreamingDataset(str(folder / "lit"), shuffle=True, seed=SEED, drop_last=False)
        return StreamingDataLoader(dataset, batch_size=1, num_workers=place.workers)


class LanceDb(Reader):
    packages = ("lancedb",)

    def write(self, folder: Path, samples: int) -> None:
        import lancedb

        lancedb.connect(folder).create_table("numbers", [{"number": number} for number in range(samples)])

    def open(self, folder: Path, place: Place) -> Any:
        return self.loader(folder, place, None)

    def loader(self, folder: Path, place: Place, state: Any) -> Any:
        """All states are joined into one, which takes any shape that divides the parts."""
        import lancedb
        from lancedb.streaming import StreamingDataLoader, StreamingDataset

        parts = math.lcm(*(ranks * workers for ranks, workers in THEN))
        table = lancedb.connect(folder).open_table("numbers")
        mine: Any = {"rank": place.rank, "world_size": place.ranks}
        dataset = StreamingDataset(table, num_splits=parts, shuffle_seed=SEED, **mine)
        if state is not None:
            dataset.load_state_dict(StreamingDataset.merge_state_dicts(all_states(folder.parent)))
        loader = StreamingDataLoader(dataset, batch_size=1, num_workers=place.workers, multiprocessing_context="spawn")
        vars(loader)["state_dict"] = dataset.state_dict
        return loader


class Energon(Reader):
    packages = ("megatron-energon",)

    def write(self, folder: Path, samples: int) -> None:
        WebDataset().write(folder, samples)
        options = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
        command = [Path(sys.executable).with_name("energon"), "prepare", *options, "--num-workers", "1", folder]
        subprocess.run(command, check=True, capture_output=True)

    def open(self, folder: Path, place: Place) -> Any:
        from megatron.energon import (
            Cooker,
            DefaultTaskEncoder,
            WorkerConfig,
            get_savable_loader,
            get_train_dataset,
            reraise_exception,
            stateless,
        )

        class Numbers(DefaultTaskEncoder):
            cookers: ClassVar = [Cooker(stateless(with_number))]
            decoder = None

        sizes: Any = {"rank": place.rank, "world_size": place.ranks, "num_workers": place.workers}
        config = WorkerConfig(**sizes, global_error_handler=reraise_exception)
        buffers: Any = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
        dataset = get_train_dataset(folder, worker_config=config, task_encoder=Numbers(), repeat=False, **buffers)
        loader = get_savable_loader(dataset)
        vars(loader)["state_dict"] = loader.save_state_rank
        return loader

    def loader(self, folder: Path, place: Place, state: Any) -> Any:
        """The states of other ranks are dealt anew by Energon's own command."""
        loader = self.open(folder, place)
        if state is not None:
            loader.restore_state_rank(state if place.ranks == FIRST[0] else self.dealt(folder.parent, place))
        return loader

    def dealt(self, folder: Path, place: Place) -> Any:
        """This rank's part of the states of all.

        Raises:
            RuntimeError: the command's last line.
        """
        import torch

        with tempfile.TemporaryDirectory() as made:
            Path(made, "new").mkdir()
            for rank, state in enumerate(all_states(folder)):
                torch.save(state, f"{made}/state-{rank}.pt")
            energon, files = Path(sys.executable).with_name("energon"), sorted(map(str, Path(made).glob("*.pt")))
            command = [energon, "checkpoint", "redist", "--new-world-size", str(place.ranks), *files, f"{made}/new"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr.strip().splitlines()[-1])
            return torch.load(f"{made}/new/state-{place.rank}.pt", weights_only=False)


def with_number(sample: Any) -> Any:
    """Energon's samples keep what they are restored by."""
    return {**sample, "number": int(sample["number.txt"])}


def all_states(folder: Path) -> list[Any]:
    """States of all ranks that were stopped."""
    return [pickle.loads((folder / f"state-{rank}").read_bytes()) for rank in range(FIRST[0])]


class WebDataset(Reader):
    packages = ("webdataset", "torchdata")

    def write(self, folder: Path, samples: int) -> None:
        import webdataset as wds

        with wds.ShardWriter(str(folder / "%06d.tar"), maxcount=10, verbose=0) as out:
            for number in range(samples):
                out.write({"__key__": f"{number:06d}", "number.txt": str(number)})

    def open(self, folder: Path, place: Place) -> Any:
        import webdataset as wds
        from torchdata.stateful_dataloader import StatefulDataLoader

        shards = sorted(map(str, folder.glob("*.tar")))
        dataset = wds.WebDataset(shards, nodesplitter=wds.split_by_node, shardshuffle=False, empty_check=False)
        numbers = dataset.map(lambda sample: {"number": int(sample["number.txt"])})
        return StatefulDataLoader(numbers, batch_size=None, num_workers=place.workers)


class HuggingFace(Reader):
    packages = ("datasets", "torchdata")

    def write(self, folder: Path, samples: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for begin in range(0, samples, 10):
            numbers = list(range(begin, min(begin + 10, samples)))
            pq.write_table(pa.table({"number": numbers}), folder / f"{begin:06d}.parquet")

    def open(self, folder: Path, place: Place) -> Any:
        from datasets import load_dataset
        from datasets.distributed import split_dataset_by_node
        from torchdata.stateful_dataloader import StatefulDataLoader

        files = sorted(map(str, folder.glob("*.parquet")))
        cache = str(folder / "cache")
        whole = load_dataset("parquet", data_files=files, streaming=True, split="train", cache_dir=cache)
        mine = split_dataset_by_node(whole, rank=place.rank, world_size=place.ranks)
        return StatefulDataLoader(mine, batch_size=None, num_workers=place.workers)


READERS: dict[str, Reader] = {
    "preshard": Preshard(),
    "MosaicML Streaming": Streaming(),
    "LitData": LitData(),
    "LanceDB": LanceDb(),
    "Megatron Energon": Energon(),
    "webdataset, torchdata": WebDataset(),
    "datasets, torchdata": HuggingFace(),
}


def one_rank(name: str, folder: Path, place: Place, steps: int) -> None:
    """Runs as a process: takes steps, or all that is left at -1, and writes their numbers and the state."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    state = None
    if place.taken:
        own = folder / f"state-{place.rank}"
        state = pickle.loads((own if own.exists() else folder / "state-0").read_bytes())
    reader = READERS[name]
    loader = reader.loader(folder / "data", place, state)
    numbers = reader.numbers(loader, place)
    found = list(numbers if steps < 0 else islice(numbers, steps))
    if steps >= 0:
        (folder / f"state-{place.rank}").write_bytes(pickle.dumps(loader.state_dict()))
    (folder / f"numbers-{place.rank}").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # without waiting for the loader's workers


def job(name: str, folder: Path, shape: tuple[int, int], *, taken: int, samples: int, steps: int) -> list[int]:
    """Numbers that all ranks of a job were given, step by step.

    Raises:
        RuntimeError: a rank failed or hung; its last line.
    """
    ranks, workers = shape
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        place = {"rank": rank, "ranks": ranks, "workers": workers, "taken": taken, "samples": samples}
        group = {"RANK": rank, "LOCAL_RANK": rank, "GLOBAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "HF_HUB_OFFLINE": 1}
        environment = {**os.environ, **{key: str(value) for key, value in (group | where).items()}}
        command = [sys.executable, __file__, "--rank", name, str(folder), json.dumps(place), str(steps)]
        log = (folder / f"log-{rank}").open("w")
        started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
    try:
        codes = [each.wait(TIMEOUT) for each in started]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end after {TIMEOUT} s") from None
    finally:
        for each in started:  # with workers of an epoch that was left
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
    if any(codes):
        failed = next(rank for rank, code in enumerate(codes) if code)
        raise RuntimeError((folder / f"log-{failed}").read_text().strip().splitlines()[-1][:160])
    each = [json.loads((folder / f"numbers-{rank}").read_text()) for rank in range(ranks)]
    longest = max(map(len, each), default=0)
    return [given[step] for step in range(longest) for given in each if step < len(given)]


def measure(name: str, samples: int, steps: int) -> None:
    """Prints the rows of one reader."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "data").mkdir()
        READERS[name].write(folder / "data", samples)
        before = job(name, folder, FIRST, taken=0, samples=samples, steps=steps)
        for shape in THEN:
            try:
                after = job(name, folder, shape, taken=len(before), samples=samples, steps=-1)
            except RuntimeError as error:
                print(f"| {name} | {shape[0]} x {shape[1]} | refused: {error} | |", flush=True)
                continue
            met = Counter(before + after)
            twice, never = sum(count - 1 for count in met.values()), samples - len(met)
            print(f"| {name} | {shape[0]} x {shape[1]} | {twice} | {never} |", flush=True)


def main() -> None:
    """Prints the table, and the versions."""
    if sys.argv[1:2] == ["--rank"]:
        name, folder, place, steps = sys.argv[2:]
        one_rank(name, Path(folder), Place(**json.loads(place)), int(steps))
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("readers", nargs="*", metavar="READER", help=f"of {'; '.join(READERS)}")
    arguments.add_argument("--samples", type=int, default=203)
    arguments.add_argument("--steps", type=int, default=12)
    given = arguments.parse_args()
    print(f"{given.samples} samples, resumed after {given.steps} steps of {FIRST[0]} ranks x {FIRST[1]} workers\n")
    print("| reader | resumed on | come twice | never |\n|---|---|---|---|")
    said = []
    for name in given.readers or READERS:
        try:
            said.append(", ".join(f"{each} {version(each)}" for each in READERS[name].packages))
        except PackageNotFoundError as missing:
            said.append(f"{missing.name} is not installed")
            continue
        measure(name, given.samples, given.steps)
    print("\n" + "; ".join(dict.fromkeys(said)))


if __name__ == "__main__":
    main()

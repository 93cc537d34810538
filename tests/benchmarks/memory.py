"""The driver's memory: bytes a document that each step of a job adds at its peak, for text documents.

    python tests/benchmarks/memory.py [--documents 200000 1000000]

The real job runs in a process of its own, twice, and every task in it is a sham that keeps what a real one would, made
of random lengths: so that no text is read and no shard written, and what is measured is what the driver holds. What a
document costs is the difference of the peaks over the difference of the documents. Ray's store holds a task of every
shard beside that; its bytes are counted from the pickled tasks.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import hardware  # noqa: E402

from preshard.packer_service.ingest.source.containers.json_lines import FRAGMENT_BYTES  # noqa: E402
from preshard.packer_service.ingest.source.file import Fragment  # noqa: E402
from preshard.packer_service.job.measure import MEASURED, Measured  # noqa: E402
from preshard.packer_service.job.measured import MeasuredCounts, keep_measured  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.job.plan import (  # noqa: E402
    PLAN_FOLDER,
    PlannedShardRef,
)
from preshard.packer_service.job.read import read_shard  # noqa: E402
from preshard.packer_service.job.record_file import ShardRecord, encode_record, record_name  # noqa: E402
from preshard.packer_service.runtime.executors import TaskCounts  # noqa: E402
from preshard.packer_service.shards.store import Folder  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.manifest import WORK, ShardEntry  # noqa: E402
from preshard.schemas.tables import DOCUMENTS, PACKS, TABLES  # noqa: E402

ROW_BYTES = 512
PER_FRAGMENT = FRAGMENT_BYTES // ROW_BYTES


class Peak:
    """The most memory of this process since the last look, from Linux."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self._forget()

    def lap(self, name: str) -> None:
        """The peak of what ends here."""
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        [peak] = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")]
        self.steps[name] = peak
        self._forget()

    @staticmethod
    def _forget() -> None:
        pa.default_memory_pool().release_unused()
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


class Sham:
    """An executor whose tasks keep random results. It marks the steps of the job."""

    def __init__(self, out: Path) -> None:
        self.out, self.peak, self.task_bytes = out, Peak(), 0

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, TaskCounts]]:
        if not items:
            return
        name = function.func.__name__  # type: ignore[attr-defined]
        self.peak.lap(f"before {name}")
        for i, item in enumerate(items):
            if "build" in name:
                self.task_bytes += len(pickle.dumps(item))
                self._build(item, **function.keywords)  # type: ignore[attr-defined]
                yield i, TaskCounts(amounts={})
            elif "measure" in name:
                yield i, self._measure(*item)
            else:  # what plans is no sham, but runs elsewhere as a task would
                with get_context("spawn").Pool(1) as pool:
                    yield i, pool.apply(function, (item,))
        self.peak.lap(name)

    def _measure(self, index: int, fragment: Fragment) -> MeasuredCounts:
        rng, n = np.random.default_rng(index), PER_FRAGMENT
        tokens = np.clip(np.exp(rng.normal(6, 1, n)).astype(np.int64), 16, 30_000)
        columns: dict[str, Any] = {
            name: pa.nulls(n, field) for name, field in zip(MEASURED.names, MEASURED.types, strict=True)
        }
        columns |= {
            "row": np.arange(n), "offset": fragment.start + ROW_BYTES * np.arange(n), "size": np.full(n, ROW_BYTES - 1),
            "doc_id": [f"document-{index * n + i:010d}" for i in range(n)], "source": ["web"] * n,
            "piece": np.zeros(n, np.int64), "tokens": tokens, "images": np.zeros(n, np.int64),
            "patches": np.zeros(n, np.int64), "load": np.zeros(n, np.int64),
            "area": tokens * (tokens + 1) // 2, "loss_weight": np.ones(n), "truncated": np.zeros(n, np.int64),
        }  # fmt: skip
        found = Measured(pa.table(columns, schema=MEASURED), n, [])
        return keep_measured(Folder(str(self.out / WORK)), index, found, 0.1)

    def _build(self, ref: PlannedShardRef, files: Sequence[Any], sources: Sequence[str], **_: object) -> None:
        planned = read_shard(ref, Folder(str(self.out / WORK / PLAN_FOLDER)), files, sources)
        documents = [
            {"doc_id": each.row["doc_id"], "piece": 0, "source": each.source, "pack_id": ref.first_pack + i,
             **{name: each.row[name] for name in ("start", "length", "aligned_length")},
             **dict.fromkeys(("copy_number", "epoch", "n_units", "n_images", "n_patches", "load"), 0),
             "truncated_tokens": 0}
            for i, pack in enumerate(planned) for each in pack
        ]  # fmt: skip
        packs = [
            {"pack_id": ref.first_pack + i, "key": f"{ref.first_pack + i:010d}", "shard": ref.name, "n_tokens": 1}
            for i in range(len(planned))
        ]
        tables = {name: schema.empty_table() for name, schema in TABLES.items()}
        tables["packs.parquet"] = pa.Table.from_pylist(packs, schema=PACKS)
        tables["documents.parquet"] = pa.Table.from_pylist(documents, schema=DOCUMENTS)
        entry = ShardEntry(name=ref.name, bytes=1, sha256="0" * 64, packs=len(packs), first_pack=ref.first_pack)
        data = encode_record(ShardRecord(entry=entry, seconds=0.1, tables=tables))
        Folder(str(self.out / WORK)).write(record_name(ref.first_pack // PackConfig().packs_per_shard), data)


class Quiet:
    """A progress that says nothing."""

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: object = None) -> None: ...


def run(n_documents: int) -> None:
    """One job in this process; prints what it measured as JSON."""
    with tempfile.TemporaryDirectory() as temporary:
        source, out = Path(temporary) / "source.jsonl", Path(temporary) / "out"
        with source.open("wb") as file:
            file.truncate(n_documents * ROW_BYTES)  # without bytes: nobody reads it
        sham = Sham(out)
        counts = pack([str(source)], str(out), PackConfig(), sham, Quiet()).manifest.counts  # type: ignore[arg-type]
        sham.peak.lap("finish")
        print(json.dumps({"documents": counts.documents, "task_bytes": sham.task_bytes, **sham.peak.steps}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs=2, default=(200_000, 1_000_000), metavar=("FEW", "MANY"))
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(given.run)
        return
    print(hardware())
    few, many = (_in_a_process(-(-n // PER_FRAGMENT) * PER_FRAGMENT) for n in given.documents)
    more = many.pop("documents") - few.pop("documents")
    for name, peak in many.items():
        of = "bytes of tasks in Ray's store" if name == "task_bytes" else f"{name}, peak"
        print(f"{of:32s} {peak / 2**20:8.1f} MiB {(peak - few[name]) / more:8.1f} bytes a document")


def _in_a_process(n_documents: int) -> dict[str, int]:
    command = [sys.executable, str(Path(__file__)), "--run", str(n_documents)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    measured: dict[str, int] = json.loads(done.stdout)
    return measured


if __name__ == "__main__":
    main()

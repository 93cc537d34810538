"""The job's own planning of very many documents: memory of driver and tasks, time by stage, bytes after kills.

    python tests/benchmarks/scale.py [--documents 5000000] [--processes 2] [--kills 0] [--mixture mixed] [--tables]
    python tests/benchmarks/scale.py --documents 5000000 --tables --prove      # the same bytes, whatever happens
    python tests/benchmarks/scale.py --documents 100000000 --tables --prove    # a quarter of an hour, or twice as long
    python tests/benchmarks/scale.py --documents 100000000 --lengths   # the same documents through `plan --lengths`

Lengths are drawn from a mixture and kept as measuring would keep them; nothing is decoded. From there everything is the
job's: sorted runs, partitions, step order, segments, and the stream of rows that finishing takes the dataset's id from.
With ``--tables`` each shard's record is made from its rows of the plan, as the task that writes it would keep it, and
the job joins them into the tables and the manifest, which ``--keep`` leaves in a folder (shards are not written).

The driver is a process of its own, which with ``--kills`` is killed with all of its tasks at so many moments, evenly
over the files that planning makes, and started again. ``--prove`` does everything, and then plans the same documents
again with one process, killed five times: the plan must have the same bytes, and up to ``--prove-tables`` documents the
tables and the manifest, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import hardware  # noqa: E402
from mixtures import MIXTURES, lengths  # noqa: E402
from scale_tables import FEW_LOADS, write_tables  # noqa: E402

from packer_service.ingest.source.file import Fragment, SourceFile  # noqa: E402
from packer_service.job.measure import MEASURED, Measured  # noqa: E402
from packer_service.job.measured import find_measured, keep_measured  # noqa: E402
from packer_service.job.partition import PARTITION_ROWS  # noqa: E402
from packer_service.job.partitions import PartitionPlanner  # noqa: E402
from packer_service.job.plan import Planned  # noqa: E402
from packer_service.job.preview_lengths import plan_lengths  # noqa: E402
from packer_service.job.runs import RUN_ROWS  # noqa: E402
from packer_service.plan.cost import CostModel, causal_area  # noqa: E402
from packer_service.plan.order import straggler_ratio  # noqa: E402
from packer_service.shards.store import Folder  # noqa: E402
from schemas.config import PackConfig  # noqa: E402
from schemas.manifest import WORK  # noqa: E402

PER_FRAGMENT, DP_SIZE = 62_500, 64
PROVING_KILLS = 5
TASKS_OF_A_PROCESS = 8
"""A process ends after so many tasks, as Ray's do after some: its memory is what a few in a row leave."""


class Quiet:
    """A progress that says nothing."""

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: object = None) -> None: ...


class Peak:
    """The most memory of this process since it was made, from Linux."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")

    def mib(self) -> float:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        [peak] = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
        return peak / 1024


class Processes:
    """An executor of some processes; knows the largest peak of a task."""

    def __init__(self, n: int) -> None:
        self.n, self.peak_mib = n, 0.0

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        with get_context("spawn").Pool(self.n, maxtasksperchild=TASKS_OF_A_PROCESS) as pool:
            for index, result, peak in pool.imap_unordered(partial(_task, function=function), enumerate(items)):
                self.peak_mib = max(self.peak_mib, peak)
                yield index, result


def _task(numbered: tuple[int, Any], function: Callable[[Any], Any]) -> tuple[int, Any, float]:
    index, item = numbered
    peak = Peak()
    result = function(item)
    return index, result, peak.mib()


def drawn(number: int, documents: int, mixture: str) -> dict[str, pa.Array]:
    """The documents of a fragment: names and sizes. The first of each fragment has the same id."""
    n = min(PER_FRAGMENT, documents - number * PER_FRAGMENT)
    tokens, images = lengths(mixture, n, number)
    numbers = np.arange(number * PER_FRAGMENT, number * PER_FRAGMENT + n)
    numbers[0] = 0
    padded = pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), 10, "0")
    return {
        "doc_id": pc.binary_join_element_wise("document", padded, "-"),
        "tokens": pa.array(tokens),
        "images": pa.array(images),
        "source": pa.array(["web", "books", "video"]).take(pa.array(numbers % 3)),
    }


def keep(number: int, work: str, documents: int, mixture: str) -> None:
    """Keeps what measuring a fragment would have given."""
    columns: dict[str, Any] = drawn(number, documents, mixture)
    n, config = len(columns["doc_id"]), PackConfig()
    images, tokens = columns["images"].to_numpy(), columns["tokens"].to_numpy()
    columns |= {
        "row": np.arange(n),
        "offset": np.arange(n) * 512,
        "size": np.full(n, 511),
        "piece": np.zeros(n, np.int64),
        "patches": images * config.vision.patches_per_crop,
        "load": images * CostModel.of(config).vision_work_per_crop,
        "area": causal_area(tokens),
        "loss_weight": tokens / 2,
        "truncated": np.zeros(n, np.int64),
    }
    table = pa.table({name: columns.get(name, pa.nulls(n)) for name in MEASURED.names}).cast(MEASURED)
    keep_measured(Folder(work), number, Measured(table, n, []), 0.1)


def write_lengths(path: Path, documents: int, mixture: str) -> None:
    """The same documents as a file of lengths."""
    with pq.ParquetWriter(path, pa.table(drawn(0, 1, mixture)).schema, compression="zstd") as file:
        for number in range(-(-documents // PER_FRAGMENT)):
            file.write_table(pa.table(drawn(number, documents, mixture)))


def drive(out: Path, processes: int, partition: int, tables: str) -> None:
    """The driver: plans what is kept in the work folder; prints what it measured as JSON."""
    work = out / WORK
    executor, folder, peak, seconds = Processes(processes), Folder(str(work)), Peak(), dict[str, float]()
    n_fragments = int((work / "fragments").read_text(encoding="utf-8"))
    file = SourceFile(label="rows.jsonl", uri="/rows.jsonl", kind="jsonl", size=1, mtime_ns=0)
    fragments = [Fragment(file=file, start=i, end=i + 1) for i in range(n_fragments)]
    planner = PartitionPlanner(
        work=folder, config=PackConfig(), executor=executor, progress=Quiet(), partition_rows=partition
    )
    began = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        seconds[name] = time.perf_counter() - began
        began = time.perf_counter()

    plan = planner.kept([file])
    if plan is None:
        merged = {i for first, end in planner.merged().items() for i in range(first, end)}
        planner.merge(fragments, find_measured(folder, [i for i in range(n_fragments) if i not in merged]))
        lap("sorted runs")
        plan = planner.plan([file], {})
    lap("partitions")
    identity = hashlib.sha256()
    for table in plan.rows():
        identity.update(table["doc_id"].combine_chunks().buffers()[2])
        identity.update(table["pack_id"].to_numpy())
        identity.update(table["start"].to_numpy())
    lap("stream of rows")
    plan_mib, bytes_of = [peak.mib(), executor.peak_mib], dict[str, int]()
    if tables:
        config = PackConfig() if tables == "full" else FEW_LOADS
        took, bytes_of = write_tables(out, plan, executor, config, Quiet())
        seconds |= took
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(
        json.dumps(
            {
                "plan_mib": plan_mib,
                "driver_mib": peak.mib(),
                "task_mib": executor.peak_mib,
                "bytes": bytes_of,
                "cpu": sum(each.ru_utime + each.ru_stime for each in usage),
                "seconds": seconds,
                "rows": identity.hexdigest(),
                **figures(plan),
            }
        )
    )


def figures(plan: Planned) -> dict[str, Any]:
    config, parts, costs = PackConfig(), plan.partitions, plan.costs()
    tokens, images = sum(part.aligned for part in parts), sum(part.images for part in parts)
    bound = max(-(-tokens // config.seq_len), -(-images // (config.max_images or images)))
    return {
        "documents": plan.n_documents,
        "rejected": plan.n_rejected,
        "partitions": len(parts),
        "packs": plan.n_packs,
        "over": plan.n_packs / bound,
        "fill": sum(part.tokens for part in parts) / (plan.n_packs * config.seq_len),
        "straggler": straggler_ratio(costs, DP_SIZE),
        "left": sum(part.left for part in parts),
    }


def driven(out: Path, processes: int, partition: int, kills: int, steps: int, tables: str) -> dict[str, Any]:
    """Runs the driver, kills it and its tasks as often as asked, and returns what the last one printed."""
    work = out / WORK
    command = [sys.executable, str(Path(__file__)), "--drive", str(out)]
    command += ["--processes", str(processes), "--partition", str(partition), "--with-tables", tables]
    for number in range(kills):
        at = steps * (number + 1) // (kills + 1)
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        while driver.poll() is None and made(work) < at:
            time.sleep(0.05)
        print(f"killed with {made(work)} of {steps} runs and segments there", flush=True)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def made(work: Path) -> int:
    """Runs and segments that are there."""
    names = [path.name for folder in ("runs", "plan/000000") for path in (work / folder).glob("*.arrow")]
    return sum(not name.startswith(".") and not name.endswith("-costs.arrow") for name in names)


def hash_of(folder: Path) -> str:
    """Of all files, by name."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest.update(str(path.relative_to(folder)).encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def run_lengths(documents: int, mixture: str) -> None:
    """`plan --lengths` of so many documents, in this process."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "lengths.parquet"
        write_lengths(path, documents, mixture)
        peak, began, cpu = Peak(), time.perf_counter(), time.process_time()
        report = plan_lengths(path, PackConfig(), Quiet(), (DP_SIZE,))
        print(
            f"plan --lengths: {report.documents:,} documents, {report.packs:,} packs, fill {report.fill:.4%}, "
            f"straggler ratio at DP {DP_SIZE} {report.straggler_ratio[DP_SIZE]:.4f}\n"
            f"{time.perf_counter() - began:.0f} s ({time.process_time() - cpu:.0f} s of CPU), "
            f"peak {peak.mib():,.0f} MiB"
        )


def draw(out: Path, documents: int, mixture: str, processes: int) -> None:
    """Keeps all documents as measured."""
    work, n_fragments = out / WORK, -(-documents // PER_FRAGMENT)
    work.mkdir(parents=True)
    (work / "fragments").write_text(str(n_fragments), encoding="utf-8")
    with get_context("spawn").Pool(processes) as pool:
        task = partial(keep, work=str(work), documents=documents, mixture=mixture)
        for _ in pool.imap_unordered(task, range(n_fragments)):
            pass


def run_job(given: argparse.Namespace, out: Path, processes: int, kills: int, tables: str) -> tuple[str, str]:
    """Plans what is drawn, prints figures, and returns the hashes of the plan and of the tables."""
    n_fragments, partition = -(-given.documents // PER_FRAGMENT), given.partition
    per_run = max(1, min(RUN_ROWS, partition) // PER_FRAGMENT)
    steps = -(-n_fragments // per_run) + -(-given.documents // partition)
    found = driven(out, processes, partition, kills, steps, tables)
    stages = ", ".join(f"{name} {value:.0f} s" for name, value in found["seconds"].items())
    plan, made_tables = hash_of(out / WORK / "plan"), hash_of_files(out)
    size = sum(path.stat().st_size for path in (out / WORK).rglob("*") if path.is_file())
    in_plan = " and ".join(f"{mib:,.0f}" for mib in found["plan_mib"])
    print(
        f"{processes} processes, {kills} kills: {found['documents']:,} documents in {found['packs']:,} packs of "
        f"{found['partitions']} partitions, {found['rejected']} rejected\n"
        f"packs over the bound {found['over']:.6f}, fill {found['fill']:.4%}, straggler ratio at DP {DP_SIZE} "
        f"{found['straggler']:.5f}, {found['left']:,} packs left over\n"
        f"{stages}; {found['cpu']:.0f} s of CPU; work folder {size / 2**20:,.0f} MiB\n"
        f"peaks of driver and largest task: planning {in_plan} MiB, in all {found['driver_mib']:,.0f} and "
        f"{found['task_mib']:,.0f} MiB\n"
        + "".join(f"{name} {size / 2**20:,.1f} MiB, " for name, size in found["bytes"].items())
        + f"hash of the plan {plan[:16]}, of its rows {found['rows'][:16]}, of the tables {made_tables[:16]}",
        flush=True,
    )
    return plan, made_tables


def hash_of_files(folder: Path) -> str:
    """Of the files directly in a folder, by name."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def run(given: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="preshard-scale-"))
    tables = "" if not given.tables else "full" if given.all_loads else "few"
    try:
        first, again, began = folder / "first", folder / "again", time.perf_counter()
        draw(first, given.documents, given.mixture, given.processes)
        if given.prove:
            shutil.copytree(first, again, copy_function=os.link)
        print(f"drawn and kept as measured in {time.perf_counter() - began:.0f} s", flush=True)
        one = run_job(given, first, given.processes, given.kills, tables)
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            for path in first.iterdir():
                if path.is_file():
                    shutil.move(path, given.keep / path.name)
        if given.prove:
            shutil.rmtree(first)
            with_tables = tables if given.documents <= given.prove_tables else ""
            other = run_job(given, again, 1, PROVING_KILLS, with_tables)
            assert one[0] == other[0], "the plans differ"
            assert not with_tables or one[1] == other[1], "the tables differ"
            print("the same bytes with one process and after kills: plan" + (" and tables" if with_tables else ""))
        print(f"{time.perf_counter() - began:.0f} s in all")
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=5_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--partition", type=int, default=PARTITION_ROWS, help="documents that are planned together")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--mixture", choices=list(MIXTURES), default="mixed")
    parser.add_argument("--lengths", action="store_true", help="run `plan --lengths` instead of the job")
    parser.add_argument("--tables", action="store_true", help="make the tables and the manifest, too")
    parser.add_argument("--all-loads", action="store_true", help="a balance of the default configuration's size")
    parser.add_argument("--keep", type=Path, help="leaves the tables and the manifest in this folder")
    parser.add_argument("--prove", action="store_true", help="again with one process and five kills: the same bytes")
    parser.add_argument(
        "--prove-tables", type=int, default=20_000_000, help="most documents whose tables are made twice"
    )
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--with-tables", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        drive(given.drive, given.processes, given.partition, given.with_tables)
        return
    print(f"{hardware()}, {given.processes} processes, mixture {given.mixture}, load {os.getloadavg()[0]:.1f}")
    if given.lengths:
        run_lengths(given.documents, given.mixture)
    else:
        run(given)


if __name__ == "__main__":
    main()

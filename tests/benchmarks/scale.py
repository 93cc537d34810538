"""The job's own planning of very many documents: memory of driver and tasks, time by stage, bytes after kills.

    python tests/benchmarks/scale.py [--documents 5000000] [--processes 2] [--kills 0] [--mixture mixed] [--tables]
    python tests/benchmarks/scale.py --documents 5000000 --tables --prove      # the same bytes, whatever happens
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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import hardware  # noqa: E402
from mixtures import MIXTURES  # noqa: E402
from scale_drawn import PER_FRAGMENT, draw, write_lengths  # noqa: E402
from scale_driver import DP_SIZE, Peak, drive  # noqa: E402

from preshard.packer_service.job.planning.partition import PARTITION_ROWS  # noqa: E402
from preshard.packer_service.job.planning.runs import RUN_ROWS  # noqa: E402
from preshard.packer_service.job.preview.lengths import plan_lengths  # noqa: E402
from preshard.packer_service.runtime.progress import NoProgress  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.manifest import WORK  # noqa: E402

PROVING_KILLS = 5


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
    names = [path.name for folder in ("runs", "plan/000000") for path in (work / folder).glob("*.parquet")]
    return sum(not name.startswith(".") and not name.endswith(("-costs.parquet", "-rejects.parquet")) for name in names)


def hash_of(folder: Path, pattern: str) -> str:
    """Hash of files, by name."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.glob(pattern) if path.is_file()):
        with path.open("rb") as file:
            digest.update(str(path.relative_to(folder)).encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def run_lengths(documents: int, mixture: str) -> None:
    """`plan --lengths` of so many documents, in this process."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "lengths.parquet"
        write_lengths(path, documents, mixture)
        peak, began, cpu = Peak(), time.perf_counter(), time.process_time()
        report = plan_lengths(path, PackConfig(), NoProgress(), (DP_SIZE,))
        print(
            f"plan --lengths: {report.documents:,} documents, {report.packs:,} packs, fill {report.fill:.4%}, "
            f"straggler ratio at DP {DP_SIZE} {report.straggler_ratio[DP_SIZE]:.4f}\n"
            f"{time.perf_counter() - began:.0f} s ({time.process_time() - cpu:.0f} s of CPU), "
            f"peak {peak.mib():,.0f} MiB"
        )


def run_job(given: argparse.Namespace, out: Path, processes: int, kills: int, tables: str) -> tuple[str, str]:
    """Plans what is drawn, prints figures, and returns the hashes of the plan and of the tables."""
    n_fragments, partition = -(-given.documents // PER_FRAGMENT), given.partition
    per_run = max(1, min(RUN_ROWS, partition) // PER_FRAGMENT)
    steps = -(-n_fragments // per_run) + -(-given.documents // partition)
    found = driven(out, processes, partition, kills, steps, tables)
    plan, made_tables = hash_of(out / WORK / "plan", "**/*"), hash_of(out, "*")
    size = sum(path.stat().st_size for path in (out / WORK).rglob("*") if path.is_file())
    print_figures(found, f"{processes} processes, {kills} kills", size)
    print(
        f"hash of the plan {plan[:16]}, of its rows {found['rows'][:16]}, of the tables {made_tables[:16]}", flush=True
    )
    return plan, made_tables


def print_figures(found: dict[str, Any], title: str, size: int) -> None:
    """Prints what a driver measured; of a killed job, what the last one of it did."""
    stages = ", ".join(f"{name} {value:.0f} s" for name, value in found["seconds"].items())
    print(
        f"{title}: {found['documents']:,} documents in {found['packs']:,} packs of {found['partitions']} partitions, "
        f"{found['rejected']} rejected\n"
        f"packs over the bound {found['over']:.6f}, fill {found['fill']:.4%}, straggler ratio at DP {DP_SIZE} "
        f"{found['straggler']:.5f}, {found['left']:,} packs left over\n"
        f"{stages}; {found['cpu']:.0f} s of CPU; work folder {size / 2**20:,.0f} MiB\n"
        f"driver: at most {found['plan_mib'][0]:,.0f} MiB while planning, {found['driver_mib']:,.0f} in all"
    )
    for name, (tasks, before, most) in found["peaks"].items():
        print(f"tasks of {name}: {tasks:,}, at most {most:,.0f} MiB ({before:,.0f} before they began)")
    print("".join(f"{name} {size / 2**20:,.1f} MiB, " for name, size in found["bytes"].items()), flush=True)


def first_half(given: argparse.Namespace, folder: Path, tables: str) -> tuple[str, str]:
    """Draws, plans, and returns the hashes; what is drawn stays there once more for the second half."""
    first, began = folder / "first", time.perf_counter()
    draw(first, given.documents, given.mixture, given.processes)
    if given.prove:
        shutil.copytree(first, folder / "again", copy_function=os.link)
    print(f"drawn and kept as measured in {time.perf_counter() - began:.0f} s", flush=True)
    hashes = run_job(given, first, given.processes, given.kills, tables)
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
        for path in first.iterdir():
            if path.is_file():
                shutil.move(path, given.keep / path.name)
    shutil.rmtree(first)
    return hashes


def second_half(given: argparse.Namespace, folder: Path, tables: str, hashes: tuple[str, str]) -> None:
    """The same documents with one process and kills."""
    with_tables = tables if given.documents <= given.prove_tables else ""
    again = run_job(given, folder / "again", 1, PROVING_KILLS, with_tables)
    assert hashes[0] == again[0], "the plans differ"
    assert not with_tables or hashes[1] == again[1], "the tables differ"
    print("the same bytes with one process and after kills: plan" + (" and tables" if with_tables else ""))


def run(given: argparse.Namespace) -> None:
    began, tables = time.perf_counter(), "" if not given.tables else "full" if given.all_loads else "few"
    with tempfile.TemporaryDirectory(prefix="preshard-scale-") as folder:
        hashes = first_half(given, Path(folder), tables)
        if given.prove:
            second_half(given, Path(folder), tables, hashes)
    print(f"{time.perf_counter() - began:.0f} s in all, load {os.getloadavg()[0]:.1f}")


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

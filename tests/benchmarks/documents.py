"""Many short text documents through a whole job: documents a second of each phase, and the memory of all processes.

    python tests/benchmarks/documents.py [--documents 200000] [--processes 2] [--set seq_len=8192 ...] [--against TREE]

The documents are cut from Python's own manual, 80 to some thousand characters long, and are packed by the command line
with the default configuration. Beside it stands a floor: the same texts read and tokenised, and nothing else, in as
many processes; the job does that twice, once to measure and once to write.

With ``--against``, another working tree of this project packs the same texts, in turns with this one, each in one
process without Ray, whose start is not what is compared. Shards must have the same bytes; ratios are the medians of all
rounds. Both trees pack some thousand texts first, in which they compile.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing as mp
import os
import pydoc_data.topics
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import Others, hardware  # noqa: E402
from processes import PeakMemory, cpu_seconds  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.ingest.source.containers.json_lines import read_lines  # noqa: E402
from preshard.packer_service.ingest.text.load import load_tokenizer  # noqa: E402

GIB = 1 << 30
PART = 8 << 20
WARMING = 2000
"""Texts that both trees pack first, in which they compile what they keep compiled."""


def write_source(path: Path, count: int, seed: int = 0) -> None:
    """Texts with lengths of a log-normal distribution, about 400 characters in the middle."""
    book = "\n\n".join(pydoc_data.topics.topics.values())
    rng = np.random.default_rng(seed)
    lengths = np.clip(400 * np.exp(0.8 * rng.standard_normal(count)), 80, 20_000).astype(int).tolist()
    starts = rng.integers(0, len(book) - 20_000, count).tolist()
    with path.open("w", encoding="utf-8") as file:
        for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            file.write(json.dumps({"id": f"d{number}", "text": book[start : start + length]}) + "\n")


def tokens_of(start: int, path: Path) -> int:
    """The floor's task: a part of the file, read and tokenised."""
    config = load_config()
    encode = load_tokenizer(config.tokenizer, config.special_tokens).encode
    with path.open("rb") as file:
        lines = read_lines(file, start, start + PART)
    return sum(len(encode(json.loads(line.data or b"{}")["text"])) for line in lines)


def tokenise(path: Path, processes: int) -> tuple[float, float, int]:
    """Seconds by the clock and of all CPUs, and tokens of the floor; the processes have loaded the tokenizer before."""
    with mp.get_context("spawn").Pool(processes) as pool:
        work = partial(tokens_of, path=path)
        pool.map(work, [path.stat().st_size] * processes * 4, chunksize=1)
        cpu, begin = cpu_seconds(os.getpid()), time.perf_counter()
        tokens = sum(pool.imap_unordered(work, range(0, path.stat().st_size, PART)))
        return time.perf_counter() - begin, cpu_seconds(os.getpid()) - cpu, tokens


def pack(source: Path, out: Path, processes: int, settings: list[str], tree: Path = ROOT) -> tuple[float, PeakMemory]:
    command = [sys.executable, "-m", "preshard.packer_service", "pack", str(source), "--out", str(out)]
    options = [word for setting in settings for word in ("--set", setting)]
    begin = time.perf_counter()
    job = subprocess.Popen(
        [*command, "--executor", "ray", "--num-cpus", str(processes), *options], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    peaks = PeakMemory(job.pid)
    if peaks.watch_until_end(job):
        sys.exit("the job failed")
    return time.perf_counter() - begin, peaks


ALONE = """
import json, sys, time
from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
class Quiet:
    def note(self, message): ...
    def step(self, *done, **more): ...
source, out, *settings = sys.argv[1:]
config = load_config(None, settings)
clock, cpu = time.perf_counter(), time.process_time()
phases = pack([source], out, config, PlainExecutor(), Quiet()).seconds
print(json.dumps([time.perf_counter() - clock, time.process_time() - cpu, phases]))
"""
"""What runs in each tree: a whole job in one process."""


def alone(tree: Path, source: Path, out: Path, settings: list[str]) -> tuple[float, float, dict[str, float], str]:
    """Seconds by the clock, of processors and by phase of a job in one process, and the hash of its shards."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", ALONE, str(source), str(out), *settings]
    ran = subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
    clock, cpu, phases = json.loads(ran.stdout.splitlines()[-1])
    shards = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((out / "shards").iterdir())))
    return clock, cpu, phases, shards.hexdigest()


def compare(source: Path, folder: Path, against: Path, rounds: int, settings: list[str]) -> None:
    """Packs with both trees in turns, and prints how much less this one takes."""
    few, ratios = folder / "few.jsonl", []
    write_source(few, WARMING)
    for number in range(-1, rounds):
        times, shards = {}, set()
        for tree in (against, ROOT) if number % 2 else (ROOT, against):
            out = folder / f"{number}-{len(times)}"
            others = Others(partial(cpu_seconds, os.getpid()))
            clock, cpu, phases, hashed = alone(tree, few if number < 0 else source, out, settings)
            times[tree] = np.array([clock, cpu])
            shards.add(hashed)
            print(f"  {tree.name}: {clock:.1f} s, {cpu:.1f} s of processors, {phases}; {others}", flush=True)
            shutil.rmtree(out)
        assert len(shards) == 1, "the shards differ"
        if number >= 0:
            ratios.append(times[against] / times[ROOT])
    by_clock, by_cpu = np.median(np.array(ratios), axis=0)
    print(f"{by_clock:.2f} x as fast by the clock, {by_cpu:.2f} x by processor time (median of {rounds} rounds)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as of preshard pack")
    parser.add_argument("--against", type=Path, help="another working tree")
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison")
    given = parser.parse_args()
    print(f"{hardware()}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as temporary:
        source, out = Path(temporary) / "texts.jsonl", Path(temporary) / "dataset"
        write_source(source, given.documents)
        if given.against:
            compare(source, Path(temporary), given.against, given.rounds, given.settings)
            return
        floor, floor_cpu, tokens = tokenise(source, given.processes)
        print(f"{given.documents:,} documents, {tokens:,} tokens, {source.stat().st_size / 1e6:.0f} MB")
        others = Others(partial(cpu_seconds, os.getpid()))
        seconds, peaks = pack(source, out, given.processes, given.settings)
        print(f"while it packed, {others}")
        facts = json.loads((out / "run.json").read_text(encoding="utf-8"))
        print_phases(given.documents, floor, seconds, facts)
        print(f"  processor time: the floor {floor_cpu:.0f} s, the job {peaks.cpu_seconds:.0f} s")
        print_memory(peaks)


def print_phases(documents: int, floor: float, whole: float, facts: dict[str, float]) -> None:
    phases = {name: facts[f"{name}_seconds"] for name in ("measure", "plan", "write", "finish")}
    rows = {
        "tokenising alone (the floor)": floor,
        **phases,
        "start and end": whole - sum(phases.values()),
        "all": whole,
    }
    for name, seconds in rows.items():
        print(f"  {name:<29} {seconds:8.2f} s {documents / max(seconds, 1e-9):12,.0f} documents/s")
    print(f"  load {os.getloadavg()[0]:.1f}")


def print_memory(peaks: PeakMemory) -> None:
    together, each = peaks.most_shared_out / GIB, peaks.most_together / GIB
    print(f"all processes, Ray and its store included: {together:.2f} GiB at most (wanted: below 3.7)")
    print(f"  with shared pages counted for each process {each:.2f} GiB")
    for name, (resident, private) in sorted(peaks.by_kind().items()):
        print(f"  {name:<10} at most {resident / GIB:.2f} GiB in one process, {private / GIB:.2f} GiB of them private")


if __name__ == "__main__":
    main()

"""The inspection service with one sound dataset among many that hang, crash or fill what reads them.

    python tests/benchmarks/hostile_service.py [--clients 50] [--seconds 20] [--rows 200000000] [--kinds NAME,...]

Clients ask about the sound dataset, each five times a second, half of the questions new ones; first alone, then while
twenty others, in a process of their own, ask everything about every hostile dataset without a pause, the shards of one
dataset vanish and come back, and the manifest of another changes all the time. Printed are the times of both, what all
processes of the service take, what is left of them when the questions stop, and how long it takes to end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import hardware  # noqa: E402
from service import Client  # noqa: E402

from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402
from preshard.packer_service.runtime.progress import NoProgress  # noqa: E402
from preshard.schemas.config import parse_config  # noqa: E402
from tests.support.hostile_datasets import write_hostile  # noqa: E402
from tests.support.served import descendants, is_running, memory_bytes, processor_seconds, served  # noqa: E402

QUESTIONS = (
    "", "/balance", "/shards", "/shards/preshard-000000.tar/balance", "/packs?sort=-cost", "/packs/0",
    "/packs/0/layout", "/packs/0/mask", "/packs/0/text", "/packs/0/documents/0", "/documents?contains=x",
    "/documents/text-0", "/rejects",
)  # fmt: skip
WAIT_SECONDS = 120.0
PAUSE_SECONDS = 0.2
HOSTILE_CLIENTS = 20


def write_healthy(folder: Path) -> None:
    """Packs some texts."""
    source = folder.with_name("rows.jsonl")
    rows = [{"id": f"text-{i}", "text": f"line {i} of a text. " * (5 + i)} for i in range(60)]
    source.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    values = {"seq_len": 2048, "cp_sizes": [1, 2], "ring_degrees": [1, 2], "block_size": 64, "packs_per_shard": 2}
    pack([str(source)], str(folder), parse_config(values | {"order": {"window": 2}}), PlainExecutor(), NoProgress())
    source.unlink()


class Watch:
    """The most that the processes of a service take, looked at twice a second."""

    def __init__(self, pid: int) -> None:
        self.pid, self.most_bytes, self.most_processes, self.seen = pid, 0, 0, set[int]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.5):
            pids = descendants(self.pid)
            self.seen.update(pids)
            self.most_processes = max(self.most_processes, len(pids))
            self.most_bytes = max(self.most_bytes, memory_bytes(pids))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


async def ask_calmly(port: int, clients: int, seconds: float) -> tuple[np.ndarray, int]:
    """Questions about the sound dataset: their times, and how many were not answered well."""
    times: list[float] = []
    errors = 0
    end = time.perf_counter() + seconds

    async def work(number: int) -> None:
        nonlocal errors
        client = Client(port)
        await client.open()
        turn = 0
        await asyncio.sleep(PAUSE_SECONDS * number / clients)
        while time.perf_counter() < end:
            turn += 1
            new = f"/documents?contains={number}.{turn}.{int(seconds)}"
            question = new if turn % 2 else QUESTIONS[turn // 2 % len(QUESTIONS)]
            took, status = await client.ask(f"/v1/datasets/healthy{question}")
            times.append(took)
            errors += status != 200
            await asyncio.sleep(PAUSE_SECONDS)
        client.close()

    await asyncio.gather(*map(work, range(clients)))
    return np.array(times), errors


def ask_hostilely(port: int, names: list[str], statuses: dict[int, int]) -> None:
    """Asks everything about everything until it is ended; in a process of its own."""
    os.nice(5)

    async def work(start: int) -> None:
        turn = start * 7
        while True:
            client = Client(port)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, StopIteration, RuntimeError):
                await client.open()
                while True:
                    turn += 1
                    question = QUESTIONS[turn // len(names) % len(QUESTIONS)]
                    _, status = await client.ask(f"/v1/datasets/{names[turn % len(names)]}{question}")
                    statuses[status] = statuses.get(status, 0) + 1
            await asyncio.sleep(0.05)

    async def everything() -> None:
        await asyncio.gather(*map(work, range(HOSTILE_CLIENTS)))

    asyncio.run(everything())


def disturb(root: Path, over: threading.Event) -> None:
    """Takes shards away and puts them back, and writes a manifest over and over."""
    shards, manifest = root / "vanishing" / "shards", root / "changing" / "manifest.json"
    data = manifest.read_bytes()
    while not over.wait(0.2):
        shards.rename(shards.with_name("gone"))
        manifest.write_bytes(data[: len(data) // 2])
        time.sleep(0.2)
        shards.with_name("gone").rename(shards)
        manifest.write_bytes(data)


def wait_until_answered(port: int) -> float:
    """Seconds until a question about the sound dataset is answered well, at most two minutes."""
    began = time.perf_counter()
    while time.perf_counter() - began < WAIT_SECONDS:
        _, errors = asyncio.run(ask_calmly(port, 1, 0.5))
        if not errors:
            break
    return time.perf_counter() - began


def tell(what: str, times: np.ndarray, errors: int) -> float:
    p50, p99 = 1000 * np.percentile(times, 50), 1000 * np.percentile(times, 99)
    print(f"{what}: {len(times):,} requests, {errors} errors, p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
    return float(p99)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rows", type=int, default=200_000_000)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--request-seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    print(hardware())
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "root"
        root.mkdir()
        write_healthy(root / "healthy")
        kinds = tuple(filter(None, arguments.kinds.split(",")))
        names = write_hostile(root, root / "healthy", rows=arguments.rows, wanted=kinds)
        for name in ("vanishing", "changing"):
            shutil.copytree(root / "healthy", root / name)
        measure(root, [*names, "vanishing", "changing"], arguments)


def measure(root: Path, names: list[str], arguments: argparse.Namespace) -> None:
    """Asks alone, then in bad company."""
    print(f"{len(names)} hostile datasets beside the sound one")
    with served(root, request_seconds=arguments.request_seconds) as (process, port):
        watch = Watch(process.pid)
        print(f"the sound one answers {wait_until_answered(port):.1f} s after the start")
        asyncio.run(ask_calmly(port, 1, 15))  # until everything is loaded
        asyncio.run(ask_calmly(port, arguments.clients, 3))
        alone = tell("alone", *asyncio.run(ask_calmly(port, arguments.clients, arguments.seconds)))
        over = threading.Event()
        disturber = threading.Thread(target=disturb, args=(root, over))
        disturber.start()
        with multiprocessing.Manager() as manager:
            statuses = manager.dict()
            paths = [quote(name) for name in names]
            attacker = multiprocessing.Process(target=ask_hostilely, args=(port, paths, statuses), daemon=True)
            attacker.start()
            time.sleep(1)
            beside = tell("in bad company", *asyncio.run(ask_calmly(port, arguments.clients, arguments.seconds)))
            print(f"p99 is {beside / alone:.2f} times that of alone; the hostile ones' answers: {dict(statuses)}")
            attacker.kill()
            attacker.join()
        over.set()
        disturber.join()
        settle(process.pid, watch, arguments.request_seconds)
        end(process, watch)


def settle(pid: int, watch: Watch, seconds: float) -> None:
    """Prints the work and memory that remain when nobody has asked for as long as a request may take."""
    time.sleep(seconds + 1)
    pids = descendants(pid)
    before = {each: processor_seconds(each) for each in pids}
    time.sleep(2)
    used = sum(processor_seconds(each) - before[each] for each in pids if is_running(each))
    threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    print(
        f"two seconds of rest took {used:.2f} s of processor; {len(pids)} processes, at most {watch.most_processes}; "
        f"{threads} threads in the one that listens; memory at most {watch.most_bytes >> 20} MiB, now "
        f"{memory_bytes(pids) >> 20} MiB"
    )


def end(process: subprocess.Popen[str], watch: Watch) -> None:
    """One SIGTERM."""
    watch.stop()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    status = process.wait()
    took = time.monotonic() - began
    time.sleep(0.3)
    left = [pid for pid in watch.seen if is_running(pid)]
    print(f"ended {took:.1f} s after SIGTERM with status {status}; processes left: {len(left)}")


if __name__ == "__main__":
    main()

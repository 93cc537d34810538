"""The inspection service under load: clients ask everything about a large dataset; times, errors, memory.

    python tests/benchmarks/service.py [--packs 1000000] [--clients 50] [--seconds 10] [--keep FOLDER]

The dataset is that of ``service_dataset.py``. The clients run in this process and take their share of the machine.

Cold: every question is the first of its kind since the service started, one after the other or all at once.
Cached: the same questions again, in an endless round. Memory is that of all processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from machine import hardware  # noqa: E402
from service_dataset import write_dataset  # noqa: E402

from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.members import shard_name  # noqa: E402
from tests.support.served import descendants, memory_bytes, processor_seconds, served  # noqa: E402

SHARD_SORTS = ("-attention", "-gather_path", "-images", "-image_load", "-traffic", "-bytes", "-fill")
SORTS = ("pack_id", "-cost", "-n_images", "n_tokens", "-attention", "-ring_path", "-gather_path", "-images")


def questions(config: PackConfig, n_packs: int, n_documents: int) -> dict[str, list[str]]:
    """Different questions of each kind that the page asks; none about a single pack, whose shard is only a hole."""
    degrees = [(layout, ring) for layout in config.layouts for ring in config.ring_degrees]
    draw = random.Random(0)

    def chosen() -> str:
        layout, ring = draw.choice(degrees)
        return f"layout={layout}&ring={ring}"

    def place(most: int) -> str:
        return f"offset={draw.randrange(0, most - 50)}&limit=50"

    return {
        "overview": [""],
        "all layouts": ["/balance"],
        "one layout": [f"/balance?layout={layout}&ring={ring}&cp={ring}" for layout, ring in degrees],
        "one side of a comparison": ["/compared"],
        "advice": [f"/advice?gpus={gpus}" for gpus in (8, 64)],
        "shards": [f"/shards?sort={sort}&{chosen()}" for sort in (*SHARD_SORTS, *SHARD_SORTS)],
        "shards of a later page": [f"/shards?{chosen()}&{place(n_packs // config.packs_per_shard)}" for _ in range(8)],
        "packs": [f"/packs?sort={sort}&{chosen()}" for sort in SORTS],
        "packs of a later page": [f"/packs?sort={draw.choice(SORTS)}&{chosen()}&{place(n_packs)}" for _ in range(24)],
        "packs of a shard": [f"/packs?shard={shard_name(n)}" for n in (0, n_packs // config.packs_per_shard // 2)],
        "documents": [f"/documents?{place(n_documents)}" for _ in range(12)],
        "documents of a source": ["/documents?source=books"],
        "documents by a part of their id": ["/documents?contains=9999", "/documents?prefix=document-00012"],
        "a document that is not there": [f"/documents/none-{n}" for n in range(12)],
        "rejects": ["/rejects"],
    }


class Client:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, path: str) -> tuple[float, int]:
        """Seconds until the whole answer is there, and its status."""
        began = time.perf_counter()
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        await self.reader.readexactly(size)
        return time.perf_counter() - began, int(head.split()[1])

    def close(self) -> None:
        self.writer.close()


async def load(port: int, asked: Sequence[str], clients: int, seconds: float | None) -> tuple[np.ndarray, int, float]:
    """Each question once (``seconds`` None), or round and round for so long; times, errors, seconds in all."""
    times: list[float] = []
    errors = 0
    turn = 0
    connections = [Client(port) for _ in range(clients)]
    await asyncio.gather(*(client.open() for client in connections))
    began = time.perf_counter()

    async def work(client: Client) -> None:
        nonlocal turn, errors
        while turn < len(asked) if seconds is None else time.perf_counter() - began < seconds:
            path = asked[turn % len(asked)]
            turn += 1
            took, status = await client.ask(path)
            times.append(took)
            errors += status != (404 if "/none-" in path else 200)

    await asyncio.gather(*(work(client) for client in connections))
    took = time.perf_counter() - began
    for client in connections:
        client.close()
    return np.array(times), errors, took


def watch(pid: int, most_bytes: Synchronized[int], over: Event) -> None:
    """Notes the most memory that a process and all that it has started take; by itself, for looking takes its time."""
    while not over.wait(0.5):
        most_bytes.value = max(most_bytes.value, memory_bytes(descendants(pid)))


class Service:
    """The service in processes of its own, what they take, and what they use of processors."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid, self.port = pid, port
        self._seen: dict[int, float] = {}
        self._over = multiprocessing.Event()
        self._most_bytes: Synchronized[int] = multiprocessing.Value("q", 0)
        self._watch = multiprocessing.Process(target=watch, args=(pid, self._most_bytes, self._over), daemon=True)
        self._watch.start()

    def processor_seconds(self) -> float:
        """Processor time of all of them; of those that have ended since, what they had when this was last asked."""
        self._seen |= {pid: used for pid in descendants(self.pid) if (used := processor_seconds(pid))}
        return sum(self._seen.values())

    def ask(self, what: str, asked: Sequence[str], clients: int, seconds: float | None = None) -> None:
        """Asks, and prints the times."""
        before = self.processor_seconds()
        times, errors, took = asyncio.run(load(self.port, asked, clients, seconds))
        used = self.processor_seconds() - before
        p50, p99, most = (1000 * np.percentile(times, share) for share in (50, 99, 100))
        print(
            f"{what}: {len(times):,} requests, {errors} errors, {len(times) / took:,.0f} per second; "
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {most:.1f} ms; {1000 * used / len(times):.2f} ms of CPU each",
            flush=True,
        )

    def end(self) -> None:
        self._over.set()
        self._watch.join()
        print(f"memory of all its processes at most {self._most_bytes.value >> 20} MiB", flush=True)


@contextlib.contextmanager
def service(root: Path, **settings: object) -> Iterator[Service]:
    """A service that has just started and knows what is below its root, but has opened none of it."""
    with served(root, **settings) as (process, port):
        found = Service(process.pid, port)
        asyncio.run(load(port, ["/v1/datasets"], 1, None))
        try:
            yield found
        finally:
            found.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--keep", type=Path, help="Folder for the dataset; used again where it has one.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or Path(temporary)
        began = time.perf_counter()
        if not (root / "large" / "manifest.json").exists():
            write_dataset(root / "large", arguments.packs)
        packs = pq.read_metadata(root / "large" / "packs.parquet").num_rows
        documents = pq.read_metadata(root / "large" / "documents.parquet").num_rows
        measures = root / "large" / "measures.parquet"
        rows = pq.read_metadata(measures).num_rows
        print(hardware())
        print(
            f"{packs:,} packs, {documents:,} documents; measures.parquet {rows:,} rows, "
            f"{measures.stat().st_size >> 20} MiB; made in {time.perf_counter() - began:.0f} s"
        )
        kinds = questions(PackConfig(), packs, documents)
        measure(
            root,
            {kind: [f"/v1/datasets/large{each}" for each in asked] for kind, asked in kinds.items()},
            arguments.clients,
            arguments.seconds,
        )


def measure(root: Path, kinds: dict[str, list[str]], clients: int, seconds: float) -> None:
    """Asks one by one, then all at once, then again; each time a service that has just started."""
    print("one client, each kind for the first time:")
    with service(root) as found:
        for kind, asked in kinds.items():
            found.ask(f"  {kind}", asked[:1], 1)
    every = [question for asked in kinds.values() for question in asked]
    random.Random(1).shuffle(every)
    with service(root) as found:
        found.ask(f"cold, {clients} clients", every, clients)
        found.ask("cached, 1 client", every, 1)
        found.ask(f"cached, {clients} clients", every, clients, seconds)


if __name__ == "__main__":
    main()

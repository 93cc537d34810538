"""The inspection service under load: clients ask everything about a large dataset; times, errors, memory.

    python tests/benchmarks/service.py [--packs 1000000] [--clients 50] [--seconds 10] [--keep FOLDER] [--underived]

The dataset is planned from lengths; its tables and manifest are what the writer makes, its shards are empty space of
the right size. Loads of ranks are those of some hundred packs that are really solved, drawn for each pack with a few
per cent of noise, so that the table compresses as a real one does. The clients run in this process and take their share
of the machine.

Cold: every question is the first of its kind since the service started, one after the other or all at once.
Cached: the same questions again, in an endless round. Before the first start, what answers about a large dataset
need is derived once, which is timed by itself; ``--underived`` leaves that out. Memory is that of all processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from machine import hardware  # noqa: E402
from mixtures import lengths  # noqa: E402

from packer_service.job.tables import ENCODINGS, GROUP_ROWS  # noqa: E402
from packer_service.plan.cost import CostModel, causal_area  # noqa: E402
from packer_service.plan.make import make_plan  # noqa: E402
from packer_service.plan.plan import Plan  # noqa: E402
from packer_service.report.what_if import solve_lengths  # noqa: E402
from schemas.balance import BalanceOrder  # noqa: E402
from schemas.codec import encode_json, sample_key, seal_manifest, shard_name  # noqa: E402
from schemas.config import PackConfig  # noqa: E402
from schemas.manifest import FORMAT_VERSION, Counts, Manifest, ShardEntry, TableEntry, TokenizerEntry  # noqa: E402
from schemas.tables import BALANCE, DOCUMENTS, PACKS, REJECTS  # noqa: E402
from tests.support.served import descendants, memory_bytes, processor_seconds, served  # noqa: E402

SOLVED = 128
MIXTURE = "mixed"
SAMPLE_BYTES = 512 * 200
SHARD_SORTS = ("-attention", "-gather_path", "-images", "-image_load", "-traffic", "-bytes", "-fill")
SORTS = ("pack_id", "-cost", "-n_images", "n_tokens", "-attention", "-ring_path", "-gather_path", "-images")


PLANNED = 50_000
"""Packs that are planned; a larger dataset has their plan again and again, with other documents."""


def write_dataset(folder: Path, n_packs: int) -> PackConfig:
    """Plans about ``n_packs`` packs and writes their dataset."""
    config = PackConfig()
    times = max(round(n_packs / PLANNED), 1)
    plan, images = make(config, n_packs // times)
    folder.mkdir(parents=True)
    loads, tiles = solved(plan, images, config)
    drawn = np.random.default_rng(1).integers(0, len(loads), plan.n_packs * times)
    each = np.split(drawn, times)
    packs = (packs_table(plan, images, tiles[each[i]], config, i * plan.n_packs) for i in range(times))
    write_table(folder / "packs.parquet", PACKS, packs)
    write_table(folder / "documents.parquet", DOCUMENTS, (documents_table(plan, images, i) for i in range(times)))
    write_table(folder / "rejects.parquet", REJECTS, [REJECTS.empty_table()])
    order = BalanceOrder.of(config, plan.n_packs * times)
    write_table(folder / "balance.parquet", BALANCE, balance_parts(order, loads, drawn))
    write_manifest(folder, plan, images, config, times)
    return config


def make(config: PackConfig, n_packs: int) -> tuple[Plan, np.ndarray]:
    """A plan of about so many packs, and the images of its documents."""
    tokens, images = lengths(MIXTURE, 20_000, 0)
    tokens = np.minimum(tokens, config.seq_len)
    n = int(20_000 * n_packs * config.seq_len / tokens.sum())
    tokens, images = lengths(MIXTURE, n, 0)
    tokens, images = np.minimum(tokens, config.seq_len), np.minimum(images, config.max_images or 0)
    plan = make_plan(
        tokens=tokens,
        images=images,
        areas=causal_area(tokens),
        seq_len=config.seq_len,
        max_images=config.max_images,
        alignment=config.alignment,
        window=config.order.window,
        seed=config.order.seed,
        cost_model=CostModel.of(config),
    )
    return plan, images


def solved(plan: Plan, images: np.ndarray, config: PackConfig) -> tuple[np.ndarray, np.ndarray]:
    """Loads of some packs, a row each in the order of a pack's rows, and their tiles."""
    wanted = np.unique(np.linspace(0, plan.n_packs - 1, SOLVED).astype(int)).tolist()
    packs = []
    for pack in wanted:
        own = slice(plan.pack_edges[pack], plan.pack_edges[pack + 1])
        crops = images[plan.document[own]]
        packs.append(solve_lengths(pack, plan.start[own], plan.length[own], plan.aligned_length[own], crops, config))
    return np.stack([rows["load"].to_numpy() for _, _, rows in packs]), np.array([tiles for _, tiles, _ in packs])


def balance_parts(order: BalanceOrder, loads: np.ndarray, drawn: np.ndarray) -> Iterator[pa.Table]:
    """``balance.parquet``, a stretch at a time."""
    noise = np.random.default_rng(2)
    before = dict(zip(order.groups, np.cumsum([0, *(group.rows for group in order.groups)]), strict=False))
    for stretch in order.stretches():
        group, n = stretch.group, stretch.packs
        kinds, ranks = len(group.kinds), group.degree
        mine = loads[drawn[stretch.first_pack : stretch.first_pack + n], before[group] : before[group] + group.rows]
        noisy = (mine * noise.uniform(0.97, 1.03, mine.shape)).astype(np.int64).reshape(n, kinds, ranks)
        shape = (kinds, n, ranks)
        columns = {
            "pack_id": np.broadcast_to(np.arange(stretch.first_pack, stretch.first_pack + n)[:, None], shape),
            "degree": np.broadcast_to(ranks, shape),
            "rank": np.broadcast_to(np.arange(ranks), shape),
            "load": noisy.transpose(1, 0, 2),
        }
        arrays: dict[str, pa.Array] = {name: pa.array(column.ravel()) for name, column in columns.items()}
        arrays["kind"] = pa.DictionaryArray.from_arrays(
            pa.array(np.repeat(np.arange(kinds, dtype=np.int32), n * ranks)), pa.array(group.kinds)
        )
        scheme = pa.array([group.scheme or ""])
        indices = np.zeros(kinds * n * ranks, np.int32)
        arrays["scheme"] = pa.DictionaryArray.from_arrays(
            pa.array(indices, mask=np.full(len(indices), group.scheme is None)), scheme
        )
        yield pa.table([arrays[name] for name in BALANCE.names], schema=BALANCE)


def packs_table(plan: Plan, images: np.ndarray, tiles: np.ndarray, config: PackConfig, first: int) -> pa.Table:
    n, each = plan.n_packs, config.packs_per_shard
    numbers = np.arange(first, first + n)
    tokens = np.add.reduceat(plan.length, plan.pack_edges[:-1])
    crops = np.add.reduceat(images[plan.document], plan.pack_edges[:-1])
    columns = {
        "pack_id": numbers,
        "key": [sample_key(pack) for pack in numbers.tolist()],
        "shard": [shard_name(pack // each) for pack in numbers.tolist()],
        "index_in_shard": numbers % each,
        "offset": numbers % each * SAMPLE_BYTES,
        "header_size": np.full(n, SAMPLE_BYTES // 2),
        "head_crc32c": np.zeros(n, np.int64),
        "size": np.full(n, SAMPLE_BYTES),
        "n_tokens": tokens,
        "n_padding": config.seq_len - tokens,
        "n_documents": np.diff(plan.pack_edges),
        "n_units": crops,
        "n_images": crops,
        "n_patches": crops * config.vision.patches_per_crop,
        "load": crops * CostModel.of(config).vision_work_per_crop,
        "n_pooled_tokens": crops * config.vision.pooled_per_crop,
        "attention_area": tiles * 16000,
        "attention_tiles": tiles,
        "cost": plan.cost,
    }
    return pa.table({name: pa.array(columns[name], PACKS.field(name).type) for name in PACKS.names}, schema=PACKS)


def documents_table(plan: Plan, images: np.ndarray, time: int) -> pa.Table:
    n = plan.n_documents
    columns = {
        "doc_id": [f"document-{i + time * n:09d}" for i in plan.document.tolist()],
        **dict.fromkeys(("piece", "copy_number", "epoch", "n_units", "n_patches", "load"), np.zeros(n, np.int64)),
        "source": np.take(["web", "books", "code"], plan.document % 3),
        "pack_id": plan.pack_id + time * plan.n_packs,
        "start": plan.start,
        "length": plan.length,
        "aligned_length": plan.aligned_length,
        "n_images": images[plan.document],
        "truncated_tokens": np.zeros(n, np.int64),
    }
    return pa.table({f.name: pa.array(columns[f.name], f.type) for f in DOCUMENTS}, schema=DOCUMENTS)


def write_table(path: Path, schema: pa.Schema, parts: Sequence[pa.Table] | Iterator[pa.Table]) -> None:
    with pq.ParquetWriter(path, schema, compression="zstd", **ENCODINGS.get(path.name, {})) as to:
        for part in parts:
            to.write_table(part, row_group_size=GROUP_ROWS if path.name != "balance.parquet" else None)


def write_manifest(folder: Path, plan: Plan, images: np.ndarray, config: PackConfig, times: int) -> None:
    """The manifest, and shards that are holes of the right size."""
    shards, each, n_packs = [], config.packs_per_shard, plan.n_packs * times
    (folder / "shards").mkdir()
    for number, first in enumerate(range(0, n_packs, each)):
        packs = min(each, n_packs - first)
        entry = ShardEntry(
            name=shard_name(number), bytes=packs * SAMPLE_BYTES, sha256="0" * 64, packs=packs, first_pack=first
        )
        path = folder / "shards" / entry.name
        path.touch()
        os.truncate(path, entry.bytes)
        (folder / "shards" / f"{entry.name}.idx").touch()
        shards.append(entry)
    tables = []
    for name in ("packs.parquet", "documents.parquet", "rejects.parquet", "balance.parquet"):
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        rows = pq.read_metadata(folder / name).num_rows
        tables.append(TableEntry(name=name, bytes=(folder / name).stat().st_size, sha256=digest, rows=rows))
    tokens = int(plan.length.sum()) * times
    counts = Counts(
        source_documents=plan.n_documents * times,
        documents=plan.n_documents * times,
        pieces=plan.n_documents * times,
        rejected=0,
        packs=n_packs,
        tokens=tokens,
        padding_tokens=n_packs * config.seq_len - tokens,
        truncated_tokens=0,
        images=int(images[plan.document].sum()) * times,
        left_out=0,
        patches=int(images[plan.document].sum()) * times * config.vision.patches_per_crop,
    )
    tokenizer = TokenizerEntry(
        name="tekken",
        sha256="0" * 64,
        vocab_size=131072,
        bos_id=1,
        eos_id=2,
        pad_id=11,
        image_id=10,
        chat_template_sha256=None,
    )
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        dataset_id="0" * 64,
        preshard_version="0",
        config=config.model_dump(mode="json"),
        tokenizer=tokenizer,
        model=None,
        sources=["lengths"],
        unused_columns={},
        unread_files={},
        counts=counts,
        tables=tables,
        shards=shards,
    )
    (folder / "manifest.json").write_bytes(encode_json(seal_manifest(manifest)))


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


class Service:
    """The service in processes of its own, what they take, and what they use of processors."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid, self.port, self.most_bytes, self._ended = pid, port, 0, 0.0
        self._seen: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            self.look()

    def look(self) -> None:
        pids = descendants(self.pid)
        self.most_bytes = max(self.most_bytes, memory_bytes(pids))
        self._seen |= {pid: used for pid in pids if (used := processor_seconds(pid))}

    def processor_seconds(self) -> float:
        """What all of them have used, those that have ended since included."""
        self.look()
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
        self._thread.join()
        print(f"memory of all its processes at most {self.most_bytes >> 20} MiB", flush=True)


@contextlib.contextmanager
def service(root: Path, derived: Path | None, **settings: object) -> Iterator[Service]:
    """A service that has just started and knows what is below its root, but has opened none of it."""
    with served(root, derived_folder=None if derived is None else str(derived), **settings) as (process, port):
        found = Service(process.pid, port)
        asyncio.run(load(port, ["/v1/datasets"], 1, None))
        try:
            yield found
        finally:
            found.end()


def derive(root: Path, folder: Path) -> None:
    """Waits until what answers need is derived, as it is once when a dataset is first seen."""
    began = time.perf_counter()
    with service(root, folder) as found:
        while not list(folder.glob("[!.]*/figures.json")):
            time.sleep(0.25)
            if time.perf_counter() - began > 1800:
                raise SystemExit("nothing was derived")
        print(f"derived in {time.perf_counter() - began:.0f} s, {found.processor_seconds():.0f} s of processor")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"the folder has {size >> 20} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--underived", action="store_true", help="Derive nothing beforehand.")
    parser.add_argument("--keep", type=Path, help="Folder for the dataset; used again where it has one.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or Path(temporary)
        began = time.perf_counter()
        if not (root / "large" / "manifest.json").exists():
            write_dataset(root / "large", arguments.packs)
        packs = pq.read_metadata(root / "large" / "packs.parquet").num_rows
        documents = pq.read_metadata(root / "large" / "documents.parquet").num_rows
        balance = root / "large" / "balance.parquet"
        rows = pq.read_metadata(balance).num_rows
        print(hardware())
        print(
            f"{packs:,} packs, {documents:,} documents; balance.parquet {rows:,} rows, "
            f"{balance.stat().st_size >> 20} MiB; made in {time.perf_counter() - began:.0f} s"
        )
        folder = None if arguments.underived else root / ".derived"
        if folder is not None:
            derive(root, folder)
        kinds = questions(PackConfig(), packs, documents)
        measure(
            root,
            folder,
            {kind: [f"/v1/datasets/large{each}" for each in asked] for kind, asked in kinds.items()},
            arguments.clients,
            arguments.seconds,
        )


def measure(root: Path, folder: Path | None, kinds: dict[str, list[str]], clients: int, seconds: float) -> None:
    """Asks one by one, then all at once, then again; each time a service that has just started."""
    print("one client, each kind for the first time:")
    with service(root, folder) as found:
        for kind, asked in kinds.items():
            found.ask(f"  {kind}", asked[:1], 1)
    every = [question for asked in kinds.values() for question in asked]
    random.Random(1).shuffle(every)
    with service(root, folder) as found:
        found.ask(f"cold, {clients} clients", every, clients)
        found.ask("cached, 1 client", every, 1)
        found.ask(f"cached, {clients} clients", every, clients, seconds)


if __name__ == "__main__":
    main()

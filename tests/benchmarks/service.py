"""The inspection service under load: clients at once on balance and packs of a large dataset; times, errors, memory.

    python tests/benchmarks/service.py [--packs 100000] [--clients 50] [--seconds 10] [--keep FOLDER]

The dataset is planned from lengths; its tables and manifest are what the writer makes, its shards are empty space of
the right size. Loads of ranks are those of some hundred packs that are really solved, drawn for each pack with a few
per cent of noise, so that the table compresses as a real one does. The clients run in this process and take their share
of the machine.

Cold: every question is the first of its kind since the service started, all clients asking different ones at once.
Cached: the same questions again, in an endless round.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from machine import hardware  # noqa: E402
from mixtures import lengths  # noqa: E402

from packer_service.job.tables import ENCODINGS  # noqa: E402
from packer_service.plan.cost import CostModel, causal_area  # noqa: E402
from packer_service.plan.make import make_plan  # noqa: E402
from packer_service.plan.plan import Plan  # noqa: E402
from packer_service.report.what_if import solve_lengths  # noqa: E402
from schemas.balance import BalanceOrder  # noqa: E402
from schemas.codec import encode_json, sample_key, seal_manifest, shard_name  # noqa: E402
from schemas.config import PackConfig  # noqa: E402
from schemas.manifest import FORMAT_VERSION, Counts, Manifest, ShardEntry, TableEntry, TokenizerEntry  # noqa: E402
from schemas.tables import BALANCE, DOCUMENTS, PACKS, REJECTS  # noqa: E402

SOLVED = 128
MIXTURE = "mixed"
SAMPLE_BYTES = 512 * 200
SORTS = ("pack_id", "-cost", "-n_images", "n_tokens", "-attention", "-ring_path", "-gather_path", "-images")


def write_dataset(folder: Path, n_packs: int) -> PackConfig:
    """Plans about ``n_packs`` packs and writes their dataset."""
    config = PackConfig()
    plan, images = make(config, n_packs)
    folder.mkdir(parents=True)
    loads, tiles = solved(plan, images, config)
    drawn = np.random.default_rng(1).integers(0, len(loads), plan.n_packs)
    write_table(folder / "packs.parquet", PACKS, [packs_table(plan, images, tiles[drawn], config)])
    write_table(folder / "documents.parquet", DOCUMENTS, [documents_table(plan, images)])
    write_table(folder / "rejects.parquet", REJECTS, [REJECTS.empty_table()])
    order = BalanceOrder.of(config, plan.n_packs)
    write_table(folder / "balance.parquet", BALANCE, balance_parts(order, loads, drawn))
    write_manifest(folder, plan, images, config)
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
    packs = [solve_lengths(plan, pack, images, config) for pack in wanted]
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


def packs_table(plan: Plan, images: np.ndarray, tiles: np.ndarray, config: PackConfig) -> pa.Table:
    n, each = plan.n_packs, config.packs_per_shard
    numbers = np.arange(n)
    tokens = np.add.reduceat(plan.length, plan.pack_edges[:-1])
    crops = np.add.reduceat(images[plan.document], plan.pack_edges[:-1])
    columns = {
        "pack_id": numbers,
        "key": [sample_key(pack) for pack in range(n)],
        "shard": [shard_name(pack // each) for pack in range(n)],
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


def documents_table(plan: Plan, images: np.ndarray) -> pa.Table:
    n = plan.n_documents
    columns = {
        "doc_id": [f"document-{i:09d}" for i in plan.document.tolist()],
        **dict.fromkeys(("piece", "copy_number", "epoch", "n_units", "n_patches", "load"), np.zeros(n, np.int64)),
        "source": np.take(["web", "books", "code"], plan.document % 3),
        "pack_id": plan.pack_id,
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
            to.write_table(part)


def write_manifest(folder: Path, plan: Plan, images: np.ndarray, config: PackConfig) -> None:
    """The manifest, and shards that are holes of the right size."""
    shards, each = [], config.packs_per_shard
    (folder / "shards").mkdir()
    for number, first in enumerate(range(0, plan.n_packs, each)):
        packs = min(each, plan.n_packs - first)
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
        data = (folder / name).read_bytes()
        rows = pq.read_metadata(folder / name).num_rows
        tables.append(TableEntry(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), rows=rows))
    tokens = int(plan.length.sum())
    counts = Counts(
        source_documents=plan.n_documents,
        documents=plan.n_documents,
        pieces=plan.n_documents,
        rejected=0,
        packs=plan.n_packs,
        tokens=tokens,
        padding_tokens=plan.n_packs * config.seq_len - tokens,
        truncated_tokens=0,
        images=int(images[plan.document].sum()),
        left_out=0,
        patches=int(images[plan.document].sum()) * config.vision.patches_per_crop,
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


def questions(config: PackConfig, n_packs: int) -> list[str]:
    """Different questions, half about balance and half about packs, in one fixed shuffled order."""
    degrees = [(layout, ring) for layout in config.layouts for ring in config.ring_degrees]
    asked = [f"balance?layout={layout}&ring={ring}&cp={ring}" for layout, ring in degrees]
    asked += [f"balance?layout={layout}&ring={ring}&cp=8" for layout, ring in degrees if ring != 8]
    draw = random.Random(0)
    while len(asked) < 2 * len(degrees) * 4:
        layout, ring = draw.choice(degrees)
        sort, offset = draw.choice(SORTS), draw.randrange(0, n_packs - 50)
        asked.append(f"packs?sort={sort}&layout={layout}&ring={ring}&offset={offset}&limit=50")
    draw.shuffle(asked)
    return [f"/v1/datasets/large/{question}" for question in asked]


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
            errors += status != 200

    await asyncio.gather(*(work(client) for client in connections))
    took = time.perf_counter() - began
    for client in connections:
        client.close()
    return np.array(times), errors, took


def processor_seconds(pid: int) -> float:
    """What a process has used of processors until now."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    values = {
        name: int(line.split()[1]) >> 10 for line in lines if (name := line.partition(":")[0]) in ("VmRSS", "VmHWM")
    }
    return f"{values['VmRSS']} MiB, at most {values['VmHWM']} MiB"


def tell(what: str, times: np.ndarray, errors: int, seconds: float, processor: float) -> None:
    p50, p99, most = 1000 * np.percentile(times, 50), 1000 * np.percentile(times, 99), 1000 * times.max()
    print(
        f"{what}: {len(times):,} requests, {errors} errors, {len(times) / seconds:,.0f} a second; "
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {most:.1f} ms; "
        f"the service used {1000 * processor / len(times):.2f} ms of processor a request",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=100_000)
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
        balance = root / "large" / "balance.parquet"
        rows = pq.read_metadata(balance).num_rows
        print(hardware())
        print(
            f"{packs:,} packs, {documents:,} documents; balance.parquet {rows:,} rows, "
            f"{balance.stat().st_size >> 20} MiB; made in {time.perf_counter() - began:.0f} s"
        )
        measure(root, packs, arguments.clients, arguments.seconds)


def measure(root: Path, packs: int, clients: int, seconds: float) -> None:
    """Starts the service and asks it."""
    command = [sys.executable, "-m", "packer_service", "serve", str(root), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = int(process.stderr.readline().rstrip("/\n").rpartition(":")[2])
        asyncio.run(load(port, ["/healthz"] * clients, clients, None))
        print(f"memory at the start {memory(process.pid)}")
        asked = questions(PackConfig(), packs)
        for what, length in (("cold", None), ("cached", seconds)):
            before = processor_seconds(process.pid)
            times, errors, took = asyncio.run(load(port, asked, clients, length))
            tell(f"{what}, {clients} clients", times, errors, took, processor_seconds(process.pid) - before)
        whole = asyncio.run(load(port, ["/v1/datasets/large", "/v1/datasets/large/balance"], 1, None))
        print(f"the whole overview {1000 * whole[0][0]:.0f} ms, the whole table of layouts {1000 * whole[0][1]:.0f} ms")
        print(f"memory {memory(process.pid)}")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()

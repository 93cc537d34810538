"""A dataset of any number of packs for the benchmark of the service, made without documents.

It is planned from lengths; its tables and manifest are what the writer makes, its shards are empty space of the right
size. Loads of ranks are those of some hundred packs that are really solved, drawn for each pack with a few per cent of
noise, so that the table compresses as a real one does.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from mixtures import lengths

from preshard.packer_service.job.writing.tables import DOCUMENT_ROWS, ENCODINGS, GROUP_ROWS
from preshard.packer_service.packs.lengths import solve_lengths
from preshard.packer_service.plan.cost import CostModel, causal_area
from preshard.packer_service.plan.make import Plan, make_plan
from preshard.packer_service.report.stored import write_figures
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.manifest_parts import seal_manifest
from preshard.schemas.dataset.measures import MEASURES, MeasureOrder
from preshard.schemas.encode import encode_json
from preshard.schemas.manifest import FORMAT_VERSION, Counts, Manifest, ShardEntry, TableEntry, TokenizerEntry
from preshard.schemas.members import sample_key, shard_name
from preshard.schemas.tables import DOCUMENTS, PACKS, REJECTS

SOLVED = 128
MIXTURE = "mixed"
SAMPLE_BYTES = 512 * 200

PLANNED = 50_000
"""Packs that are planned; a larger dataset has their plan again and again, with other documents."""


def write_dataset(folder: Path, n_packs: int) -> PackConfig:
    """Plans about ``n_packs`` packs and writes their dataset."""
    config = PackConfig()
    times = max(round(n_packs / PLANNED), 1)
    plan, images = make(config, n_packs // times)
    folder.mkdir(parents=True)
    measures, tiles = solved(plan, images, config)
    drawn = np.random.default_rng(1).integers(0, len(tiles), plan.n_packs * times)
    each = np.split(drawn, times)
    packs = (packs_table(plan, images, tiles[each[i]], config, i * plan.n_packs) for i in range(times))
    write_table(folder / "packs.parquet", PACKS, packs)
    write_table(folder / "documents.parquet", DOCUMENTS, (documents_table(plan, images, i) for i in range(times)))
    write_table(folder / "rejects.parquet", REJECTS, [REJECTS.empty_table()])
    order = MeasureOrder.of(config, plan.n_packs * times)
    write_table(folder / "measures.parquet", MEASURES, measure_parts(order, measures, drawn))
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


def solved(plan: Plan, images: np.ndarray, config: PackConfig) -> tuple[pa.Table, np.ndarray]:
    """Measures of some packs, pack by pack, and their tiles."""
    wanted = np.unique(np.linspace(0, plan.n_packs - 1, SOLVED).astype(int)).tolist()
    packs = []
    for pack in wanted:
        own = slice(plan.pack_edges[pack], plan.pack_edges[pack + 1])
        crops = images[plan.document[own]]
        packs.append(solve_lengths(pack, plan.start[own], plan.length[own], plan.aligned_length[own], crops, config))
    return pa.concat_tables(packs).unify_dictionaries(), np.array(
        [rows["attention_tiles"][0].as_py() for rows in packs]
    )


def measure_parts(order: MeasureOrder, solved: pa.Table, drawn: np.ndarray) -> Iterator[pa.Table]:
    """``measures.parquet``, a row group at a time."""
    noise = np.random.default_rng(2)
    for block in order.blocks():
        packs, factors = drawn[block.start : block.stop], noise.uniform(0.97, 1.03, len(block))
        for number, group in enumerate(order.groups):
            own = solved.take(pa.array(packs * len(order.groups) + number))
            for name in (*group.scalars, *group.loads):
                column = own[name].combine_chunks()
                is_list = name in group.loads
                values = (column.flatten() if is_list else column).to_numpy()
                noisy = (values * np.repeat(factors, group.degree if is_list else 1)).astype(np.int64)
                found = pa.ListArray.from_arrays(column.offsets, pa.array(noisy)) if is_list else pa.array(noisy)
                own = own.set_column(own.schema.get_field_index(name), MEASURES.field(name), found)
            numbers = pa.array(np.arange(block.start, block.stop))
            yield own.set_column(0, MEASURES.field(0), numbers).cast(MEASURES)


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
            most = {"measures.parquet": None, "documents.parquet": DOCUMENT_ROWS}.get(path.name, GROUP_ROWS)
            to.write_table(part, row_group_size=most)


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
    for name in ("packs.parquet", "documents.parquet", "rejects.parquet", "measures.parquet"):
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
        duplicates=0,
        numbered=0,
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
        filtered={},
        phases=[],
        counts=counts,
        tables=tables,
        figures=write_figures(Folder(str(folder)), config, n_packs),
        carried=[],
        shards=shards,
    )
    (folder / "manifest.json").write_bytes(encode_json(seal_manifest(manifest)))

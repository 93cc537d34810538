"""The last step of a job: the shards' rows joined into the dataset's tables, and the manifest that makes it whole."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packer_service.ingest.model import PackedFor
from packer_service.job.plan import Planned
from packer_service.job.records import read_record
from packer_service.shards.store import Folder
from schemas.balance import BalanceOrder
from schemas.codec import seal_manifest
from schemas.config import PackConfig
from schemas.identity import dataset_id
from schemas.manifest import FORMAT_VERSION, Counts, Manifest, TableEntry
from schemas.tables import TABLES
from schemas.version import VERSION

ENCODINGS: dict[str, dict[str, Any]] = {
    # Loads hardly repeat: stored as differences they take two fifths less space than in a dictionary, and are read in
    # half the time.
    "balance.parquet": {
        "use_dictionary": ["kind", "scheme"],
        "column_encoding": dict.fromkeys(("pack_id", "degree", "rank", "load"), "DELTA_BINARY_PACKED"),
    }
}


def make_manifest(
    folder: Folder,
    records: Folder,
    shards: Sequence[str],
    *,
    planned: Planned,
    config: PackConfig,
    target: PackedFor,
    unread: dict[str, int],
) -> Manifest:
    """Writes the tables from the shards' records, and returns the manifest that describes what is there.

    Args:
        folder: the dataset.
        records: holds a folder for each shard, with its part of every table and its :class:`ShardRecord`.
        shards: names of the shards, in order.
        planned: what was written.
        config: the job's configuration.
        target: what was packed for.
        unread: how many files of the source's folders are no source, by pattern.
    """
    order = BalanceOrder.of(config, planned.n_packs)
    tables = [_join_table(folder, name, _rows_of(name, records, shards, planned.rejects(), order)) for name in TABLES]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        dataset_id=dataset_id(config, target.tokenizer, target.model, planned.rows()),
        preshard_version=VERSION,
        config=config.model_dump(mode="json"),
        tokenizer=target.tokenizer,
        model=target.model,
        sources=[file.label for file in planned.files],
        unused_columns=planned.unused_columns,
        unread_files=unread,
        counts=_count(folder, planned.n_rows, planned.mixture.left_out),
        tables=tables,
        shards=[read_record(records, shard).entry for shard in shards],
    )
    return seal_manifest(manifest)


def _rows_of(
    name: str, records: Folder, shards: Sequence[str], rejects: Iterable[pa.Table], order: BalanceOrder
) -> Iterator[pa.Table]:
    """The rows of one table in order; only one shard's part (or one block of packs) is in memory at a time."""
    parts = (pq.read_table(io.BytesIO(records.read(f"{shard}/{name}"))).cast(TABLES[name]) for shard in shards)
    if name == "rejects.parquet":
        yield from rejects
    yield from order.by_table(parts) if name == "balance.parquet" else parts


def _join_table(folder: Folder, name: str, parts: Iterable[pa.Table]) -> TableEntry:
    """Writes one table, with one row group for each part."""
    rows = 0
    with (
        folder.writer(name) as sink,
        pq.ParquetWriter(pa.PythonFile(sink, "w"), TABLES[name], compression="zstd", **ENCODINGS.get(name, {})) as to,
    ):
        for part in parts:
            to.write_table(part)
            rows += len(part)
    with folder.open(name) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return TableEntry(name=name, bytes=folder.size(name) or 0, sha256=digest, rows=rows)


def _count(folder: Folder, n_rows: int, left_out: int) -> Counts:
    """The manifest's totals, from the tables."""
    packs = _columns(folder, "packs.parquet", "n_tokens", "n_padding", "n_images", "n_patches")
    documents = _columns(folder, "documents.parquet", "piece", "copy_number", "epoch", "truncated_tokens")
    packed = len(documents)
    if any(pc.max(documents[name]).as_py() for name in ("piece", "copy_number", "epoch")):  # an id is there again
        packed = pc.count_distinct(_columns(folder, "documents.parquet", "doc_id")["doc_id"]).as_py()
    return Counts(
        source_documents=n_rows,
        documents=packed,
        pieces=len(documents),
        rejected=n_rows - packed - left_out,
        left_out=left_out,
        packs=len(packs),
        tokens=pc.sum(packs["n_tokens"]).as_py() or 0,
        padding_tokens=pc.sum(packs["n_padding"]).as_py() or 0,
        truncated_tokens=pc.sum(documents["truncated_tokens"]).as_py() or 0,
        images=pc.sum(packs["n_images"]).as_py() or 0,
        patches=pc.sum(packs["n_patches"]).as_py() or 0,
    )


def _columns(folder: Folder, name: str, *columns: str) -> pa.Table:
    with folder.open(name) as file:
        return pq.read_table(file, columns=list(columns))

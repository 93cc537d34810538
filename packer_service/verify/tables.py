"""The dataset's tables: their bytes, their values, and that every source document is in exactly one place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packer_service.shards.store import Folder
from packer_service.verify.verdict import Faults, Finding
from schemas.balance import BalanceOrder
from schemas.codec import decode_table
from schemas.config import PackConfig
from schemas.errors import REJECT_CODES, REJECT_STAGES, DocumentLost, DocumentTwice, TableChanged, TableInvalid
from schemas.manifest import TableEntry
from schemas.tables import BALANCE, TABLES

BALANCE_FILE = "balance.parquet"
_BATCH_ROWS = 1 << 16


def check_bytes(folder: Folder, entry: TableEntry) -> Iterator[Finding]:
    """A table has the bytes that the manifest says."""
    size = folder.size(entry.name)
    with folder.open(entry.name) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if size != entry.bytes:
        yield TableChanged, f"has {size} bytes; the manifest says {entry.bytes}"
    elif sha256 != entry.sha256:
        yield TableChanged, f"has the SHA-256 {sha256}; the manifest says {entry.sha256}"


def read_tables(folder: Folder, entries: Mapping[str, TableEntry], faults: Faults) -> dict[str, pa.Table]:
    """Every table that exists and can be read, by name, except the balance, which is read in parts."""
    tables = {}
    for name in TABLES:
        if name not in entries or not folder.is_file(name):
            continue
        faults.extend(check_bytes(folder, entries[name]), name)
        if name == BALANCE_FILE:
            continue
        try:
            tables[name] = decode_table(folder.read(name), TABLES[name], name)
        except TableInvalid as error:
            faults.extend([(TableInvalid, error.detail)], name)
            continue
        faults.extend(_check_rows(tables[name], entries[name]), name)
        nulls = list(check_values(tables[name]))
        faults.extend(nulls, name)
        if nulls:
            del tables[name]
    return tables


def _check_rows(table: pa.Table, entry: TableEntry) -> Iterator[Finding]:
    if len(table) != entry.rows:
        yield TableChanged, f"has {len(table)} rows; the manifest says {entry.rows}"


def check_values(table: pa.Table) -> Iterator[Finding]:
    """No value is missing except the scheme of image loads; stages and codes are those of the format."""
    for name in table.schema.names:
        if table[name].null_count and name != "scheme":
            yield TableInvalid, f"{name} has {table[name].null_count} nulls"
    for name, legal in (("stage", REJECT_STAGES), ("code", REJECT_CODES)):
        if name in table.schema.names:
            unknown = set(pc.unique(table[name]).to_pylist()) - {*legal, None}
            if unknown:
                yield TableInvalid, f"{name} is {min(unknown)!r}; legal are {', '.join(legal)}"


class BalanceReader:
    """``balance.parquet`` pack by pack, with one block of packs in memory; None from where it can no longer be read."""

    def __init__(self, folder: Folder, faults: Faults, entry: TableEntry | None, order: BalanceOrder) -> None:
        self.faults = faults
        self.files = ExitStack()
        self.failed = entry is None or not folder.is_file(BALANCE_FILE)
        self.batches = order.by_pack(self._batches(folder, entry)) if entry is not None and not self.failed else None
        self.waiting = BALANCE.empty_table()
        self.position = 0

    def _batches(self, folder: Folder, entry: TableEntry) -> Iterator[pa.Table]:
        file = pq.ParquetFile(self.files.enter_context(folder.open(BALANCE_FILE)))
        if not file.schema_arrow.equals(BALANCE):
            names = file.schema_arrow.names
            raise TableInvalid(BALANCE_FILE, f"has the columns {names}, not {BALANCE.names} with their types")
        if file.metadata.num_rows != entry.rows:
            rows = f"has {file.metadata.num_rows} rows; the manifest says {entry.rows}"
            self.faults.extend([(TableChanged, rows)], BALANCE_FILE)
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            table = pa.Table.from_batches([batch])
            table.validate(full=True)
            self.faults.extend(check_values(table), BALANCE_FILE)
            yield table.cast(BALANCE)

    def take(self, start: int, n_rows: int) -> pa.Table | None:
        """Rows from ``start``, fewer at the table's end; None where they were taken before."""
        while self.batches is not None and self.position + len(self.waiting) < start + n_rows:
            self._read_on()
            self._drop(start)
        self._drop(start)
        if self.failed or start < self.position:
            return None
        taken = self.waiting.slice(0, min(n_rows, len(self.waiting)))
        self._drop(start + n_rows)
        # A slice travels to another process with the whole table behind it; a copy does not.
        return taken.take(pa.array(range(len(taken)), pa.int64()))

    def _drop(self, upto: int) -> None:
        """Forgets rows before ``upto``."""
        dropped = min(max(upto - self.position, 0), len(self.waiting))
        self.waiting, self.position = self.waiting.slice(dropped), self.position + dropped

    def _read_on(self) -> None:
        assert self.batches is not None
        try:
            batch = next(self.batches)
        except StopIteration:
            self.batches = None
        except (TableInvalid, pa.ArrowException, OSError, ValueError) as error:
            detail = error.detail if isinstance(error, TableInvalid) else f"cannot be read ({error})"
            self.faults.extend([(TableInvalid, detail)], BALANCE_FILE)
            self.batches, self.failed = None, True
        else:
            self.waiting = pa.concat_tables([self.waiting, batch]).unify_dictionaries()

    def close(self) -> None:
        self.files.close()


def rejected_rows(rejects: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Rejects of a document itself, of another document with the same id, and of one that was lost in writing."""
    written = pc.equal(rejects["stage"], "write")
    again = pc.and_(pc.invert(written), pc.equal(rejects["code"], "duplicate_id"))
    return rejects.filter(pc.invert(pc.or_(written, again))), rejects.filter(again), rejects.filter(written)


def count_documents(documents: pa.Table, rejects: pa.Table) -> tuple[int, int]:
    """Numbers of source documents that are packed, whole or in part, and of those that are not packed at all."""
    own, again, written = rejected_rows(rejects)
    packed = pc.unique(documents["doc_id"])
    lost = written.filter(pc.invert(pc.is_in(written["doc_id"], packed)))
    return len(packed), len(own) + len(again) + len(pc.unique(lost["doc_id"]))


def check_documents(documents: pa.Table, rejects: pa.Table, config: PackConfig) -> Iterator[Finding]:
    """Every id is packed once, or rejected once; its pieces are all there."""
    own, again, written = rejected_rows(rejects)
    packed = pc.unique(documents["doc_id"])
    for row in _repeated(documents, ["doc_id", "piece", "copy_number", "epoch"]):
        yield DocumentTwice, f"document {row['doc_id']!r}, piece {row['piece']}, is packed {row['count_all']} times"
    copies = documents.group_by(["doc_id", "pack_id", "copy_number", "epoch"], use_threads=False).aggregate([])
    for row in _repeated(copies, ["doc_id", "pack_id"]):
        yield DocumentTwice, f"pack {row['pack_id']} holds {row['count_all']} copies of document {row['doc_id']!r}"
    for row in _repeated(own, ["doc_id"]):
        yield DocumentTwice, f"document {row['doc_id']!r} is rejected {row['count_all']} times"
    whole = written if config.oversize != "split" else written.slice(0, 0)
    for rejected in (own, whole):
        for row in rejected.filter(pc.is_in(rejected["doc_id"], packed)).to_pylist():
            yield DocumentTwice, f"document {row['doc_id']!r} is packed, and rejected with {row['code']}"
    for row in own.filter(pc.is_in(own["doc_id"], pc.unique(written["doc_id"]))).to_pylist():
        yield DocumentTwice, f"document {row['doc_id']!r} is rejected with {row['code']}, and again when written"
    for row in _repeated(whole, ["doc_id"]):
        yield DocumentTwice, f"document {row['doc_id']!r} is rejected {row['count_all']} times when written"
    known = pa.chunked_array([packed, *own["doc_id"].chunks, *written["doc_id"].chunks], pa.string())
    for row in again.filter(pc.invert(pc.is_in(again["doc_id"], known))).to_pylist():
        yield DocumentLost, f"document {row['doc_id']!r} is rejected as a duplicate, but none of that id is left"
    yield from _check_pieces(documents, written, config)


def _repeated(table: pa.Table, keys: list[str]) -> list[dict[str, int]]:
    counted = table.group_by(keys, use_threads=False).aggregate([([], "count_all")])
    rows: list[dict[str, int]] = counted.filter(pc.greater(counted["count_all"], 1)).to_pylist()
    return rows


def _check_pieces(documents: pa.Table, written: pa.Table, config: PackConfig) -> Iterator[Finding]:
    """Pieces of a document count from 0; a gap is a piece that was lost when it was to be written."""
    grouped = documents.group_by("doc_id", use_threads=False).aggregate([("piece", "max"), ("piece", "count_distinct")])
    gaps = grouped.filter(pc.not_equal(pc.add(grouped["piece_max"], 1), grouped["piece_count_distinct"])).to_pylist()
    lost = dict(zip(*(column.to_pylist() for column in _counts(written["doc_id"])), strict=True))
    for row in gaps:
        missing = row["piece_max"] + 1 - row["piece_count_distinct"]
        if missing > lost.get(row["doc_id"], 0) or config.oversize != "split":
            yield DocumentLost, f"document {row['doc_id']!r} lacks {missing} of the pieces 0 to {row['piece_max']}"


def _counts(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    counted = pc.value_counts(column)
    return counted.field("values"), counted.field("counts")

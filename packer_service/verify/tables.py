"""The dataset's tables: their values, and that every source document is in exactly one place.

Every table is read in parts. What rows have to do with each other follows from sums, from the order in which they come,
or is looked at for a range of the ids at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify.folder import check_counts, check_dataset_id, check_total
from preshard.packer_service.verify.id_partitions import PARTITION_ROWS, IdPartitions, partitioned
from preshard.packer_service.verify.scan import MEASURES_FILE, DocumentOrder, PackSpan, TableScan, check_bytes
from preshard.packer_service.verify.verdict import Faults, Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.identity import dataset_id
from preshard.schemas.errors import DUPLICATES, DocumentLost, DocumentTwice
from preshard.schemas.manifest import MANIFEST, Manifest, TableEntry
from preshard.schemas.tables import DOCUMENTS, REJECTS, TABLES


def rejected_rows(rejects: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Rejects of a document itself, of a row that is equal to another, and of one that was lost in writing."""
    written = pc.equal(rejects["stage"], "write")
    again = pc.and_(pc.invert(written), pc.equal(rejects["code"], "duplicate_row"))
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
        yield DocumentLost, f"document {row['doc_id']!r} is rejected as a duplicate, but no other row has its id"
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


COUNTED = {
    "packs.parquet": {
        "tokens": "n_tokens",
        "padding_tokens": "n_padding",
        "images": "n_images",
        "patches": "n_patches",
    },
    "documents.parquet": {"truncated_tokens": "truncated_tokens"},
}
"""For each table, the counts of the manifest that are sums of its columns."""

BY_ID = {
    "documents.parquet": pa.schema(
        [DOCUMENTS.field(name) for name in ("doc_id", "piece", "copy_number", "epoch", "pack_id")]
    ),
    "rejects.parquet": pa.schema([REJECTS.field(name) for name in ("doc_id", "stage", "code")]),
}
"""The columns of each table that say what became of a document."""


@dataclass(kw_only=True)
class TablesFound:
    """What is known of the tables once they were read.

    Attributes:
        rows: of each table that is usable.
        spans: the packs of neighbouring documents; None where the table is not usable.
    """

    rows: dict[str, int] = field(default_factory=dict)
    spans: list[PackSpan] | None = None


class TableCheck:
    """Checks all tables but the measures, which are read with the shards.

    Args:
        folder: the dataset.
        manifest, config: its manifest and configuration.
        faults: hears what is wrong.
        rows_each: rows of documents that are looked at together.
    """

    def __init__(
        self, folder: Folder, manifest: Manifest, config: PackConfig, faults: Faults, rows_each: int = PARTITION_ROWS
    ) -> None:
        self._folder, self._manifest, self._config, self._faults = folder, manifest, config, faults
        self._entries = {entry.name: entry for entry in manifest.tables}
        self._rows_each = rows_each
        self._sums, self._found = Counter[str](), TablesFound()
        self._order = DocumentOrder(manifest.counts.packs)
        self._dataset_id, self._lost_in_writing = "", 0

    def run(self) -> TablesFound:
        """Reads every table once."""
        with partitioned(BY_ID, self._most_rows(), self._rows_each) as by_id:
            for name in TABLES:
                if name in self._entries and self._folder.is_file(name):
                    self._scan(self._entries[name], by_id)
            self._relations(by_id)
        return self._found

    def _most_rows(self) -> int:
        """Rows of the larger table of documents, as the manifest says."""
        return max((self._entries[name].rows for name in BY_ID if name in self._entries), default=0)

    def _scan(self, entry: TableEntry, by_id: Mapping[str, IdPartitions]) -> None:
        if entry.name == MEASURES_FILE:
            self._faults.extend(check_bytes(self._folder, entry), entry.name)
            return
        scan = TableScan(self._folder, entry, self._config)
        parts = self._summed(entry.name, scan.parts(self._faults), by_id)
        if entry.name == "documents.parquet":
            manifest = self._manifest
            self._dataset_id = dataset_id(self._config, manifest.tokenizer, manifest.model, parts)
        else:
            for _ in parts:
                pass
        if scan.usable:
            self._found.rows[entry.name] = scan.rows
            if entry.name == "documents.parquet":
                self._found.spans = self._order.spans

    def _summed(self, name: str, parts: Iterator[pa.Table], by_id: Mapping[str, IdPartitions]) -> Iterator[pa.Table]:
        """The parts, once they are counted, and laid aside by their ids."""
        for part in parts:
            for count, column in COUNTED.get(name, {}).items():
                self._sums[count] += pc.sum(part[column]).as_py() or 0
            if name == "documents.parquet":
                self._order.add(part)
            if name == "rejects.parquet":
                self._lost_in_writing += len(rejected_rows(part)[2])
                self._sums["duplicates"] += pc.sum(pc.is_in(part["code"], pa.array(DUPLICATES))).as_py() or 0
            if name in by_id:
                by_id[name].add(part)
            yield part

    def _relations(self, by_id: Mapping[str, IdPartitions]) -> None:
        """What the tables say together, and what the manifest says of them."""
        usable, findings = self._found.rows, Faults()
        has_documents, has_rejects = (name in usable for name in BY_ID)
        distinct, packed, rejected = 0, 0, 0
        if has_documents:
            for documents, rejects in zip(*(by_id[name].tables() for name in BY_ID), strict=True):
                distinct += pc.count_distinct(documents["doc_id"]).as_py()
                if has_rejects:
                    of_range = count_documents(documents, rejects)
                    packed, rejected = packed + of_range[0], rejected + of_range[1]
                    findings.extend(check_documents(documents, rejects, self._config), "documents.parquet")
        self._faults.extend(check_counts(self._manifest, self._derived(distinct)), MANIFEST)
        if has_documents and has_rejects:
            self._faults.extend(check_total(self._manifest, packed, rejected), MANIFEST)
        if has_documents:
            self._faults.extend(self._order.findings(), "documents.parquet")
        self._faults.merge(findings)
        # the plan is documents.parquet unless a document was lost in writing: the place that it had is not stored
        if has_documents and has_rejects and not self._lost_in_writing:
            self._faults.extend(check_dataset_id(self._manifest, self._dataset_id), MANIFEST)

    def _derived(self, distinct: int) -> dict[str, int]:
        """The counts that usable tables give."""
        usable, derived = self._found.rows, dict[str, int]()
        if "packs.parquet" in usable:
            derived = {"packs": usable["packs.parquet"]}
            derived |= {count: self._sums[count] for count in COUNTED["packs.parquet"]}
        if "documents.parquet" in usable:
            derived |= {"documents": distinct, "pieces": usable["documents.parquet"]}
            derived |= {count: self._sums[count] for count in COUNTED["documents.parquet"]}
        if "rejects.parquet" in usable:
            derived["duplicates"] = self._sums["duplicates"]
        return derived

"""That every source document is in exactly one place, for documents of which every row is there."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentLost, DocumentTwice


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

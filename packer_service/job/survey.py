"""What measuring found in a partition: its documents in canonical order, and its rejected rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool

from preshard.packer_service.job.arrow_files import taken
from preshard.packer_service.job.duplicates import repeated
from preshard.packer_service.job.runs import LOCATED, location_of
from preshard.schemas.document_ids import canonical_order
from preshard.schemas.rejects import rejects_table

_REASON = ("stage", "code", "message")


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Everything that measuring found in a partition.

    ``documents`` has the columns of :data:`~preshard.packer_service.job.runs.LOCATED` without the reasons of rejects.
    They stand in canonical order, by ``id_hash`` and piece, so that what is made of them does not depend on the order
    of the source. ``rejects`` has the columns of ``preshard.schemas.tables.REJECTS``, duplicates among them, in source
    order. Of several rows with one id the first in source order is packed, so an earlier source takes precedence over a
    later one. ``n_rows`` counts both.
    """

    documents: pa.Table
    rejects: pa.Table
    n_rows: int


def survey(parts: list[pa.Table], labels: Sequence[str], *, unique: bool = True) -> Survey:
    """Joins the rows of runs: finds ids that came before, and separates documents from rejected rows.

    Args:
        parts: rows of one range of hashes, from one run after the other. The list is emptied, so that no column
            outlives the last step that needs it.
        labels: labels of the source's files, by which rejects say where they are; none where nobody asks that.
        unique: whether a row is rejected whose id came before.
    """
    joined = pa.concat_tables(parts or [LOCATED.empty_table()], promote_options="permissive")
    parts.clear()
    columns = {name: joined[name] for name in joined.column_names}
    order = _source_order(columns)
    del joined
    table = taken(columns, order)
    first_piece = pc.fill_null(pc.equal(table["piece"].cast(pa.int64()), 0), True).to_numpy()
    n_rows = int(first_piece.sum())
    hashes = table["id_hash"].to_numpy()
    lost = pc.is_valid(table["code"]).to_numpy()
    duplicate = np.zeros(len(table), bool)
    if unique:
        again = repeated(table["doc_id"].filter(pa.array(first_piece)), hashes[first_piece])
        duplicate = np.repeat(again, np.diff(np.append(np.flatnonzero(first_piece), len(table))))
    lost = duplicate | lost
    rejects = table.filter(pa.array(lost & first_piece))
    columns = {name: table[name] for name in table.column_names if name not in _REASON}
    del table  # its columns of messages are not needed while the documents are copied
    pieces = pc.fill_null(columns["piece"].cast(pa.int64()), 0).to_numpy()  # without a document they are of no type
    rows = canonical_order(hashes, columns["doc_id"], pieces, rows=np.flatnonzero(~lost))
    return Survey(
        documents=taken(columns, rows),
        rejects=_rejects(labels, rejects, duplicate[lost & first_piece]),
        n_rows=n_rows,
    )


def _source_order(columns: dict[str, pa.ChunkedArray]) -> np.ndarray:
    """Rows by file and line; the pieces of a document, which share both, as they come."""
    keys = [columns[name].cast(pa.int64()).to_numpy() for name in ("line", "file")]
    return np.lexsort(keys)


def _rejects(labels: Sequence[str], rejected: pa.Table, is_duplicate: Bool[np.ndarray, "rows"]) -> pa.Table:
    duplicate = pa.array(is_duplicate)
    reasons = {name: rejected[name].cast(pa.string()) for name in _REASON}
    return rejects_table(
        len(rejected),
        doc_id=rejected["doc_id"],
        source=rejected["source"],
        location=location_of(labels, rejected["file"].cast(pa.int64()), rejected["line"]) if labels else None,
        stage=pc.if_else(duplicate, "plan", reasons["stage"]),
        code=pc.if_else(duplicate, "duplicate_id", reasons["code"]),
        message=pc.if_else(duplicate, "an earlier row has the same id", reasons["message"]),
    )

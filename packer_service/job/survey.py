"""What measuring found in a partition: its documents in canonical order, and its rejected rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int64

from preshard.packer_service.job.arrow_files import taken
from preshard.packer_service.job.duplicates import Row, Settled, settle, shared_stems
from preshard.packer_service.job.runs import LOCATED, location_of
from preshard.schemas.document_ids import canonical_order, hash_ids
from preshard.schemas.rejects import rejects_table

_REASON = ("stage", "code", "message")


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Everything that measuring found in a partition.

    ``documents`` has the columns of :data:`~preshard.packer_service.job.runs.LOCATED` without the reasons of rejects.
    They stand in canonical order, by ``id_hash`` and piece, so that what is made of them does not depend on the order
    of the source. ``rejects`` has the columns of ``preshard.schemas.tables.REJECTS``, equal rows among them, in source
    order. ``n_rows`` counts both. ``n_numbered`` counts the rows of both that got a number behind their id.
    """

    documents: pa.Table
    rejects: pa.Table
    n_rows: int
    n_numbered: int


def survey(parts: list[pa.Table], labels: Sequence[str], *, unique: bool = True) -> Survey:
    """Joins the rows of runs: gives each an id of its own, and separates documents from rejected rows.

    Args:
        parts: rows of one range of hashes, from one run after the other. The list is emptied, so that no column
            outlives the last step that needs it.
        labels: labels of the source's files, by which rejects say where they are; none where nobody asks that.
        unique: whether rows of one id get numbers, and equal ones are rejected.

    Raises:
        ConfigError: more rows have one id than there are numbers.
    """
    joined = pa.concat_tables(parts or [LOCATED.empty_table()], promote_options="permissive")
    parts.clear()
    columns = {name: joined[name] for name in joined.column_names}
    order = _source_order(columns)
    del joined
    table = taken(columns, order)
    first_piece = pc.fill_null(pc.equal(table["piece"].cast(pa.int64()), 0), True).to_numpy()
    n_rows = int(first_piece.sum())
    firsts = np.flatnonzero(first_piece)
    table = _with_own_hashes(table)
    settled = _settled(table, firsts, labels) if unique else Settled()
    table = _renamed(table, firsts, settled)
    hashes = table["id_hash"].to_numpy()
    lost = pc.is_valid(table["code"]).to_numpy()
    for first, end in _pieces(firsts, len(table), settled.twins):
        lost[first:end] = True
    rejects = _rejects(labels, table, np.flatnonzero(lost & first_piece), settled.twins)
    columns = {name: table[name] for name in table.column_names if name not in _REASON}
    del table  # its columns of messages are not needed while the documents are copied
    pieces = pc.fill_null(columns["piece"].cast(pa.int64()), 0).to_numpy()  # without a document they are of no type
    rows = canonical_order(hashes, columns["doc_id"], pieces, rows=np.flatnonzero(~lost))
    return Survey(
        documents=taken(columns, rows),
        rejects=rejects,
        n_rows=n_rows,
        n_numbered=len(settled.ids),
    )


def _source_order(columns: dict[str, pa.ChunkedArray]) -> np.ndarray:
    """Rows by file and line; the pieces of a document, which share both, as they come."""
    keys = [columns[name].cast(pa.int64()).to_numpy() for name in ("line", "file")]
    return np.lexsort(keys)


def _with_own_hashes(table: pa.Table) -> pa.Table:
    """The table with the hash of each whole id; runs are sorted by that of its stem, so that equal stems meet."""
    marked = pc.match_substring(table["doc_id"], "#")
    if not pc.any(marked).as_py():
        return table.append_column("stem_hash", table["id_hash"])
    hashes = table["id_hash"].to_numpy().copy()
    hashes[marked.to_numpy()] = hash_ids(table["doc_id"].filter(marked))
    return table.rename_columns({"id_hash": "stem_hash"}).append_column("id_hash", pa.array(hashes))


def _settled(table: pa.Table, firsts: Int64[np.ndarray, "rows"], labels: Sequence[str]) -> Settled:
    """What becomes of the ids that several rows have, by the rows' first pieces."""
    stems, ids = (table[name].to_numpy()[firsts] for name in ("stem_hash", "id_hash"))
    shared = firsts[shared_stems(stems, ids)]
    if not len(shared):
        return Settled()
    columns = ("doc_id", "file", "line", "content", "rendered", "is_stored")
    found = table.select(columns).take(pa.array(shared)).to_pylist()
    return settle(
        [
            Row(
                is_fresh=not row["is_stored"],
                is_unread=row["content"] is None,
                content=row["content"] or 0,
                label=labels[row["file"]] if labels else "",
                line=row["line"],
                doc_id=row["doc_id"],
                number=number,
                rendered=row["rendered"],
            )
            for number, row in zip(shared.tolist(), found, strict=True)
        ]
    )


def _renamed(table: pa.Table, firsts: Int64[np.ndarray, "rows"], settled: Settled) -> pa.Table:
    """The table with new ids, each with its hash; a row that is not packed has the id of the one that is."""
    table = table.drop_columns(["stem_hash", "content", "rendered", "is_stored"])
    if not settled.ids and not settled.twins:
        return table
    own = table["doc_id"]
    twins = {row: settled.ids.get(twin) or own[twin].as_py() for row, twin in settled.twins.items()}
    changed, ids = np.zeros(len(table), bool), list[str]()
    new = settled.ids | twins
    for row, (first, end) in zip(sorted(new), _pieces(firsts, len(table), new), strict=True):
        changed[first:end] = True
        ids += [new[row]] * (end - first)
    hashes = table["id_hash"].to_numpy().copy()
    hashes[changed] = hash_ids(pa.array(ids, pa.string()))
    renamed = pc.replace_with_mask(own.combine_chunks(), pa.array(changed), pa.array(ids, own.type))
    columns = {name: table[name] for name in table.column_names}
    return pa.table(columns | {"doc_id": renamed, "id_hash": pa.array(hashes)})


def _pieces(firsts: Int64[np.ndarray, "rows"], n_rows: int, of: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and end of the rows of some documents, in order, by the rows of their first pieces."""
    wanted = np.array(sorted(of), np.int64)
    ends = np.append(firsts, n_rows)[np.searchsorted(firsts, wanted) + 1]
    return zip(wanted.tolist(), ends.tolist(), strict=True)


def _rejects(
    labels: Sequence[str], table: pa.Table, rows: Int64[np.ndarray, "some"], twins: dict[int, int]
) -> pa.Table:
    """Rejected rows, in source order, each with its reason."""
    rejected = table.take(pa.array(rows))
    places = location_of(labels, table["file"].cast(pa.int64()), table["line"]) if labels else None
    equal = pa.array(np.isin(rows, np.array(list(twins), np.int64)))
    others = [twins[row] for row in rows.tolist() if row in twins]
    messages = [f"is equal to the row {places[twin].as_py()!r}" if places is not None else "" for twin in others]
    reasons = {name: rejected[name].cast(pa.string()).combine_chunks() for name in _REASON}
    return rejects_table(
        len(rejected),
        doc_id=rejected["doc_id"],
        source=rejected["source"],
        location=places.take(pa.array(rows)) if places is not None else None,
        stage=pc.if_else(equal, "plan", reasons["stage"]),
        code=pc.if_else(equal, "duplicate_row", reasons["code"]),
        message=pc.replace_with_mask(reasons["message"], equal, pa.array(messages, pa.string())),
    )

"""What measuring found: the tables of all fragments, joined into one table of documents. Integers and ids, no text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int64

from packer_service.ingest.source.file import Fragment, SourceFile
from packer_service.job.duplicates import repeated
from packer_service.job.measure import MAX_UNUSED, MEASURED, Measured
from packer_service.report.figures import Mixture
from packer_service.report.mixture import take_mixture
from schemas.config import PackConfig
from schemas.document_ids import canonical_order, hash_ids
from schemas.rejects import rejects_table

LOCATED = pa.schema([*list(MEASURED)[1:], ("file", pa.int64()), ("line", pa.int64()), ("id_hash", pa.uint64())])
DOCUMENT_COLUMNS = [name for name in LOCATED.names if name not in ("stage", "code", "message")]

MAX_STRING_BYTES = 2**30
"""Most bytes of a column of strings whose offsets stay 32 bits wide: twice as many do not fit into one array."""

NOTHING_MIXED = Mixture(left_out=0, shares={})


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Everything that measuring found.

    ``documents`` has :data:`DOCUMENT_COLUMNS`: those of ``measure.MEASURED``, with every ``doc_id`` filled in,
    ``file`` (index into ``files``), ``line`` (row in the file from 1) and ``id_hash``. They stand in canonical order,
    by ``id_hash`` and piece, so that what is made of them does not depend on the order of the source. Each column of
    integers is only as wide as its values need. ``rejects`` has the columns of ``schemas.tables.REJECTS``, duplicates
    among them, in source order. Of several rows with one id the first in source order is packed, so an earlier source
    takes precedence over a later one.
    ``unused_columns`` counts, for each column that nothing reads, the files that have it.

    :func:`mixed` lists documents as often as they are packed, which adds the columns of
    :func:`~packer_service.report.mixture.take_mixture`, and the figures ``mixture``.
    """

    files: list[SourceFile]
    documents: pa.Table
    rejects: pa.Table
    n_rows: int
    unused_columns: dict[str, int]
    mixture: Mixture = NOTHING_MIXED


def survey(
    fragments: Sequence[Fragment], measured: Iterable[Measured], unused: Mapping[str, int] | None = None
) -> Survey:
    """Joins measured fragments: numbers the rows, names those without an id, and rejects ids that came before.

    Args:
        fragments: fragments of the source, in order.
        measured: of each one, what :func:`~packer_service.job.measure.measure_fragment` returned.
        unused: columns that the schemas of tables have and nothing reads, with the number of files that have them.
    """
    files = list(dict.fromkeys(fragment.file for fragment in fragments))
    number = {file: i for i, file in enumerate(files)}
    tables, lines_before = list[pa.Table](), dict.fromkeys(files, 0)
    of_rows = set[tuple[str, SourceFile]]()
    for fragment, found in zip(fragments, measured, strict=True):
        tables.append(_locate(found.table, number[fragment.file], fragment.file, lines_before[fragment.file]))
        lines_before[fragment.file] += found.n_lines
        of_rows.update((name, fragment.file) for name in found.unused)
    counts = Counter(dict(unused or {})) + Counter(name for name, _ in of_rows)
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_UNUSED]
    return replace(_split(files, _joined(tables)), unused_columns=dict(sorted(most)))


def mixed(found: Survey, config: PackConfig) -> Survey:
    """The survey with its documents as often as the configuration takes them.

    Raises:
        ConfigError: the mixture names a source that no row has.
    """
    rejected = found.rejects["source"].unique().to_pylist()
    documents, figures = take_mixture(found.documents, config, rejected_sources=rejected)
    return replace(found, documents=documents, mixture=figures)


def _joined(tables: list[pa.Table]) -> pa.Table:
    """One table of all fragments. It empties the list, so that no column outlives the last step that needs it."""
    # "permissive": a column becomes as wide as its widest fragment
    joined = pa.concat_tables(tables or [LOCATED.empty_table()], promote_options="permissive")
    tables.clear()
    return joined


def _locate(table: pa.Table, number: int, file: SourceFile, lines_before: int) -> pa.Table:
    """Adds where each row is from, and an id to those without. As narrow as the values allow: all tables are kept."""
    line = pc.add(table["row"], lines_before + 1)
    location = pc.binary_join_element_wise(file.label, pc.cast(line, pa.string()), ":")  # SourceFile.location of each
    doc_ids = pc.coalesce(table["doc_id"], location)
    columns = {
        **{name: table[name] for name in MEASURED.names},
        "doc_id": doc_ids,
        "file": pa.array(np.full(len(table), number)),
        "line": line,
    }
    narrow = {name: _narrow(columns[name]) for name in columns if name in LOCATED.names}
    return pa.table(
        narrow | {"source": columns["source"].dictionary_encode(), "id_hash": pa.array(hash_ids(doc_ids))}
    ).select(LOCATED.names)


def _narrow(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The same values in the smallest integers that hold them; a column of nulls takes no memory at all."""
    if column.null_count == len(column):
        return pa.nulls(len(column))
    if not pa.types.is_integer(column.type):
        return column
    least, most = pc.min_max(column).as_py().values()
    widths = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    return column.cast(next(w for w in widths if -(1 << w.bit_width - 1) <= least and most < 1 << w.bit_width - 1))


def _split(files: list[SourceFile], table: pa.Table) -> Survey:
    """Separates the documents from the rejected rows."""
    first_piece = pc.fill_null(pc.equal(table["piece"], 0), True).to_numpy()
    n_rows = int(first_piece.sum())
    hashes = table["id_hash"].to_numpy()
    again = repeated(table["doc_id"].filter(pa.array(first_piece)), hashes[first_piece])
    duplicate = np.repeat(again, np.diff(np.append(np.flatnonzero(first_piece), len(table))))
    lost = duplicate | pc.is_valid(table["code"]).to_numpy()
    rejects = table.filter(pa.array(lost & first_piece)).cast(LOCATED)
    columns = {name: table[name] for name in DOCUMENT_COLUMNS}
    del table  # its columns of messages are not needed while the documents are copied
    pieces = pc.fill_null(columns["piece"].cast(pa.int64()), 0).to_numpy()  # without a document they are of no type
    order = canonical_order(hashes, columns["doc_id"], pieces, rows=np.flatnonzero(~lost))
    return Survey(
        files=files,
        documents=_taken(columns, order),
        rejects=_rejects(files, rejects, duplicate[lost & first_piece]),
        n_rows=n_rows,
        unused_columns={},
    )


def _taken(columns: dict[str, pa.ChunkedArray], rows: Int64[np.ndarray, "some"]) -> pa.Table:
    """Rows of columns. It empties the dictionary, so that no more than one column is there twice at a time."""
    taken = dict[str, pa.Array | pa.ChunkedArray]()
    for name in list(columns):
        column = columns.pop(name).unify_dictionaries()
        if pa.types.is_string(column.type) and column.nbytes > MAX_STRING_BYTES:
            column = column.cast(pa.large_string())
        taken[name] = column.combine_chunks().take(pa.array(rows))
    return pa.table(taken)


def _rejects(files: list[SourceFile], rejected: pa.Table, is_duplicate: Bool[np.ndarray, "rows"]) -> pa.Table:
    places = zip(rejected["file"].to_pylist(), rejected["line"].to_pylist(), strict=True)
    duplicate = pa.array(is_duplicate)
    return rejects_table(
        len(rejected),
        doc_id=rejected["doc_id"],
        source=rejected["source"],
        location=pa.array([files[file].location(line) for file, line in places], pa.string()),
        stage=pc.if_else(duplicate, "plan", rejected["stage"]),
        code=pc.if_else(duplicate, "duplicate_id", rejected["code"]),
        message=pc.if_else(duplicate, "an earlier row has the same id", rejected["message"]),
    )

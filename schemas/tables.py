"""The declared columns of a dataset's Parquet tables, their files, and the rows of rejected documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from preshard.schemas.dataset.document_rows import DOCUMENT_COLUMNS, REJECT_COLUMNS
from preshard.schemas.dataset.measures import MEASURE_COLUMNS, MEASURES_FILE
from preshard.schemas.dataset.rows import PACK_COLUMNS
from preshard.schemas.dataset.table import Column, Columns, schema_of
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import REJECT_STAGES, DocumentError, FormatError, TableInvalid

PACKS = schema_of(PACK_COLUMNS)
"""One row per pack, by ``pack_id``."""

DOCUMENTS = schema_of(DOCUMENT_COLUMNS)
"""One row per packed document (per piece of one, under ``oversize: split``), by ``(pack_id, start)``."""

REJECTS = schema_of(REJECT_COLUMNS)
"""One row per rejected document, in source order within each partition of the plan."""

KEPT = {"string": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
"""Types of kept columns in ``documents.parquet``, by their names in the configuration."""


def documents_columns(keep_columns: Iterable[tuple[str, str]]) -> Columns:
    """The columns of ``documents.parquet``, with those of the configuration's ``keep_columns`` behind."""
    kept = (
        Column(name=name, type=KEPT[kind], means="what the row had", nulls="whose row had nothing")
        for name, kind in keep_columns
    )
    return (*DOCUMENT_COLUMNS, *kept)


def documents_schema(keep_columns: Iterable[tuple[str, str]]) -> pa.Schema:
    """The same as a schema."""
    return schema_of(documents_columns(keep_columns))


DECLARED: dict[str, Columns] = {
    "packs.parquet": PACK_COLUMNS,
    "documents.parquet": DOCUMENT_COLUMNS,
    "rejects.parquet": REJECT_COLUMNS,
    MEASURES_FILE: MEASURE_COLUMNS,
}

TABLES: dict[str, pa.Schema] = {name: schema_of(columns) for name, columns in DECLARED.items()}


def open_table(
    opened: Any,
    name: str,
    *,
    rows: int | None = None,
    keep_columns: Iterable[tuple[str, str]] | None = None,
    error: type[FormatError] = TableInvalid,
    metadata: Any = None,
    sparing: bool = False,
) -> TableFile:
    """One of the four tables, opened as all that read it do.

    Args:
        opened: the file, for reading at any place.
        name: the table's.
        rows: that the manifest gives; None where it is not written yet.
        keep_columns: of the configuration, which ``documents.parquet`` has; None for any.
        error: what is raised of the file's bytes.
        metadata: its footer, where it was read and checked before.
        sparing: as :class:`preshard.schemas.dataset.table_file.TableFile` takes it.

    Raises:
        TableInvalid: it is not Parquet, has other columns or another number of rows, or claims more than its bytes can
            hold; also while it is read.
        OSError: it cannot be read.
    """
    keeps = name == "documents.parquet"
    columns = documents_columns(keep_columns or ()) if keeps else DECLARED[name]
    kept = tuple(KEPT.values()) if keeps and keep_columns is None else ()
    dense = name != MEASURES_FILE  # whose rows follow from those of packs, and may be all alike
    return TableFile(
        opened, name, columns, kept=kept, rows=rows, dense=dense, metadata=metadata, error=error, sparing=sparing
    )


def reason_columns(stage: str, error: DocumentError) -> dict[str, str]:
    """Columns that say why a document was rejected, and at which step.

    Args:
        stage: one of :data:`preshard.schemas.errors.REJECT_STAGES`.
        error: what is wrong with the document.
    """
    assert stage in REJECT_STAGES, stage
    return {"stage": stage, "code": error.code, "message": str(error)}


def reject_row(*, doc_id: str, source: str, location: str, stage: str, error: DocumentError) -> dict[str, str]:
    """One rejected document.

    Args:
        doc_id: its id.
        source: its subset.
        location: its file and row, as ``FILE:ROW``.
        stage: as for :func:`reason_columns`.
        error: as for the same.
    """
    return {"doc_id": doc_id, "source": source, "location": location, **reason_columns(stage, error)}


def rejects_table(n_rows: int, **columns: Any) -> pa.Table:
    """Many rejected documents by their columns.

    Args:
        n_rows: number of rejected documents.
        columns: by name, an array of that length, one value for all rows, or None where nothing is known.
    """

    def column(name: str) -> Any:
        value = columns[name]
        if value is None:
            return pa.nulls(n_rows)
        return pa.repeat(value, n_rows) if isinstance(value, str) else value

    return pa.table({name: column(name) for name in REJECTS.names}).cast(REJECTS)

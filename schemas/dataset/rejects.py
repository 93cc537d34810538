"""Rows of ``rejects.parquet``. Every step of the job that rejects a document gets its row here."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from preshard.schemas.errors import REJECT_STAGES, DocumentError
from preshard.schemas.tables import REJECTS


def reason_columns(stage: str, error: DocumentError) -> dict[str, str]:
    """Why a document was rejected, and at which step.

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

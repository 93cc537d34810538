"""The columns of a dataset's Parquet tables, where their row groups begin, and the rows of rejected documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.schemas.dataset.measures import MEASURES
from preshard.schemas.errors import REJECT_STAGES, DocumentError

PACKS = pa.schema(
    [
        ("pack_id", pa.int64()),
        *((name, pa.string()) for name in ("key", "shard")),
        *((name, pa.int64()) for name in ("index_in_shard", "offset", "header_size", "head_crc32c", "size")),
        *((name, pa.int64()) for name in ("n_tokens", "n_padding", "n_documents", "n_units", "n_images", "n_patches")),
        *((name, pa.int64()) for name in ("n_pooled_tokens", "load", "attention_area", "attention_tiles")),
        ("cost", pa.float64()),
    ]
)
"""One row per pack, by ``pack_id``. ``offset``, ``header_size`` and ``size`` are bytes in the tar, ``head_crc32c``
is the checksum of ``KEY.json``, ``load`` the vision encoder's work in multiplications, ``attention_area`` counts the
allowed pairs of the mask, ``attention_tiles`` its 128 x 128 tiles in natural order, ``cost`` is in GFLOP."""

DOCUMENTS = pa.schema(
    [
        ("doc_id", pa.string()),
        *((name, pa.int64()) for name in ("piece", "copy_number", "epoch")),
        ("source", pa.string()),
        *((name, pa.int64()) for name in ("pack_id", "start", "length", "aligned_length")),
        *((name, pa.int64()) for name in ("n_units", "n_images", "n_patches", "load", "truncated_tokens")),
    ]
)
"""One row per packed document (per piece of one, under ``oversize: split``), by ``(pack_id, start)``."""

REJECTS = pa.schema([(name, pa.string()) for name in ("doc_id", "source", "location", "stage", "code", "message")])
"""One row per rejected document, in source order within each partition of the plan. ``stage`` is ``read``, ``measure``,
``plan`` or ``write``."""

KEPT = {"string": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
"""Types of kept columns in ``documents.parquet``, by their names in the configuration."""


def documents_schema(keep_columns: Iterable[tuple[str, str]]) -> pa.Schema:
    """The columns of ``documents.parquet``, with those of the configuration's ``keep_columns`` behind."""
    return pa.schema([*DOCUMENTS, *((name, KEPT[kind]) for name, kind in keep_columns)])


TABLES: dict[str, pa.Schema] = {
    "packs.parquet": PACKS,
    "documents.parquet": DOCUMENTS,
    "rejects.parquet": REJECTS,
    "measures.parquet": MEASURES,
}


def fits(name: str, schema: pa.Schema) -> bool:
    """Whether a table may have these columns: those of its kind, and behind those of documents kept ones."""
    base = TABLES[name]
    if name != "documents.parquet":
        return bool(schema.equals(base))
    kept = list(schema)[len(base) :]
    return pa.schema(list(schema)[: len(base)]).equals(base) and all(field.type in KEPT.values() for field in kept)


def row_group_edges(metadata: Any) -> Int64[np.ndarray, "row_groups_plus_1"]:
    """The first row of each row group of a Parquet file, then the number of rows.

    Args:
        metadata: the file's footer, a ``pyarrow.parquet.FileMetaData``.
    """
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    edges: Int64[np.ndarray, "row_groups_plus_1"] = np.cumsum([0, *sizes])
    return edges


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

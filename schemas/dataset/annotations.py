"""``annotations.parquet``: columns joined to a finished dataset, row for row beside those of ``documents.parquet``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from preshard.schemas.dataset.table import Columns, schema_of
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import AnnotationsInvalid
from preshard.schemas.kept_columns import as_kept_columns
from preshard.schemas.manifest import ManifestHead
from preshard.schemas.tables import DOCUMENT_COLUMNS, DOCUMENTS, KEPT

ANNOTATIONS = "annotations.parquet"

PLACE_COLUMNS: Columns = tuple(column for column in DOCUMENT_COLUMNS if column.name in ("doc_id", "pack_id"))
PLACES = schema_of(PLACE_COLUMNS)
"""Its first columns, equal to those of ``documents.parquet``; so the rows of a few packs are found without a join."""

_DATASET, _DOCUMENTS = "preshard.dataset_id", "preshard.documents_sha256"


def annotations_schema(columns: dict[str, pa.DataType], manifest: ManifestHead) -> pa.Schema:
    """The schema of a dataset's annotations, with what they are made for in its metadata.

    Raises:
        ValueError: a name or a type is not legal, or a column is in ``documents.parquet`` already.
    """
    schema = pa.schema([*PLACES, *sorted(columns.items())], {_DATASET: manifest.dataset_id, _DOCUMENTS: _sha(manifest)})
    for fault in annotations_faults(schema, manifest):
        raise ValueError(fault)
    return schema


_REMEDY = "; remove it and annotate again"


def open_annotations(opened: Any, manifest: ManifestHead) -> TableFile:
    """A dataset's annotations.

    Args:
        opened: the file, for reading at any place.
        manifest: the dataset's.

    Raises:
        AnnotationsInvalid: it is not Parquet, is of another dataset, or has other columns or rows; also while it is
            read.
        OSError: it cannot be read.
    """
    file = TableFile(
        opened, ANNOTATIONS, PLACE_COLUMNS, kept=None, error=AnnotationsInvalid, remedy=_REMEDY, checksums=True
    )
    for fault in annotations_faults(file.schema, manifest):
        raise AnnotationsInvalid(ANNOTATIONS, fault)
    if file.n_rows != manifest.counts.pieces:
        rows = f"has {file.n_rows} rows; documents.parquet has {manifest.counts.pieces}"
        raise AnnotationsInvalid(ANNOTATIONS, f"{rows}: remove the file and annotate again")
    return file


def annotations_faults(schema: pa.Schema, manifest: ManifestHead) -> Iterator[str]:
    """Faults of annotations that have this schema, but for their rows."""
    metadata = schema.metadata or {}
    for key, wanted in ((_DATASET, manifest.dataset_id), (_DOCUMENTS, _sha(manifest))):
        found = metadata.get(key.encode(), b"").decode(errors="replace")
        if found != wanted:
            name = key.removeprefix("preshard.")
            yield f"is for the {name} {found!r:.80}; the dataset has {wanted!r}: remove the file and annotate again"
    if list(schema)[: len(PLACES)] != list(PLACES):
        yield f"begins with the columns {schema.names[: len(PLACES)]}, not {PLACES.names} with their types"
        return
    added = list(schema)[len(PLACES) :]
    names = [field.name.lower() for field in added]
    taken = {name.lower() for name in (*DOCUMENTS.names, *manifest.config.get("keep_columns", {}))}
    for number, field in enumerate(added):
        if names[number] in taken or names[number] in names[:number]:
            yield f"has the column {field.name!r:.120}, which the documents have already; leave it out, or rename it"
    try:
        as_kept_columns({field.name: kind_of(field.type) for field in added})
    except ValueError as error:
        yield str(error)


def kind_of(type_: Any) -> str:
    """The name of a column's type, as ``keep_columns`` spells it; Arrow's own where it has none."""
    return next((kind for kind, each in KEPT.items() if each == type_), str(type_))


def _sha(manifest: ManifestHead) -> str:
    return manifest.table("documents.parquet").sha256

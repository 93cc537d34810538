"""The rule of ``annotations.parquet``: it is of this dataset, and goes with ``documents.parquet`` row by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify.scan import PART_ROWS, RowReader
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.dataset.annotations import ANNOTATIONS, PLACES, annotations_faults
from preshard.schemas.errors import AnnotationsInvalid
from preshard.schemas.manifest import Manifest


def check_annotations(folder: Folder, manifest: Manifest, n_documents: int) -> Iterator[Finding]:
    """What is wrong with a dataset's annotations.

    Args:
        folder: the dataset, which has some.
        manifest: its manifest.
        n_documents: rows of ``documents.parquet``, which can be read.
    """
    try:
        with folder.open(ANNOTATIONS) as opened:
            file = pq.ParquetFile(opened, page_checksum_verification=True)
            found = list(annotations_faults(file.schema_arrow, manifest))
            if not found:
                found = list(_check_rows(folder, file, n_documents))
    except (pa.ArrowException, OSError, ValueError) as error:
        found = [f"is damaged ({' '.join(str(error).split())[:200]}); remove it and annotate again"]
    for detail in found:
        yield AnnotationsInvalid, detail


def _check_rows(folder: Folder, file: pq.ParquetFile, n_documents: int) -> Iterator[str]:
    """The rows are those of the documents, in their order, and numbers are finite."""
    if file.metadata.num_rows != n_documents:
        yield f"has {file.metadata.num_rows} rows; documents.parquet has {n_documents}"
        return
    with closing(RowReader(folder, "documents.parquet")) as documents:
        first = 0
        for batch in file.iter_batches(PART_ROWS):
            batch.validate(full=True)
            rows = documents.rows(first, first + len(batch)).select(PLACES.names)
            for name in PLACES.names:
                same = pc.fill_null(pc.equal(rows[name], pa.chunked_array([batch[name]])), fill_value=False)
                others = np.flatnonzero(~same.to_numpy())
                if len(others):
                    row = int(others[0])
                    there = f"documents.parquet has {rows[name][row].as_py()!r:.80}"
                    yield f"row {first + row} has the {name} {batch[name][row].as_py()!r:.80}, where {there}"
                    return
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if pa.types.is_floating(column.type) and pc.any(pc.invert(pc.is_finite(column))).as_py():
                    yield f"{name} holds NaN or an infinite number; legal are finite numbers and null"
                    return
            first += len(batch)

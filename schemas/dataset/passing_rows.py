"""Rows for a query of DuckDB that are read while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


class PassingRows:
    """Rows that pass through a query once, part by part, and are not kept.

    Args:
        schema: their columns.
        parts: reads them.

    Attributes:
        reader: what the query reads.
        raised: what reading the parts has raised: DuckDB makes an error of its own of it.
    """

    def __init__(self, schema: pa.Schema, parts: Iterable[pa.RecordBatch]) -> None:
        self.raised: Exception | None = None
        self.reader = pa.RecordBatchReader.from_batches(schema, self._noting(parts))

    def _noting(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from parts
        except Exception as error:  # whatever it is, the query's caller raises it
            self.raised = error
            raise

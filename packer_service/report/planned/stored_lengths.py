"""The lengths of a dataset's documents, from its table alone."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from preshard.schemas.config import PackConfig

STORED_SIZES = {
    "length": "tokens",
    "n_images": "images",
    "n_patches": "patches",
    "load": "load",
    "truncated_tokens": "truncated",
}
"""Columns of ``documents.parquet`` that a plan needs, by what they are called there."""


PLACE = ("doc_id", "piece", "copy_number", "epoch", "source")
"""Columns of ``documents.parquet`` that say which document a row is of."""


def stored_lengths(documents: pa.Table, config: PackConfig) -> pa.Table:
    """What :func:`~preshard.packer_service.report.planned.what_if.plan_table` takes: one row a document.

    Args:
        documents: :data:`PLACE` and :data:`STORED_SIZES`, and every piece of a document that has one among them. Where
            there is a column ``line``, a document has the first of its pieces'.
        config: what the dataset was packed with. Where no model says what the encoder's work is, it follows from the
            configuration of the plan.
    """
    documents = documents.filter(_first_copies(documents))
    wanted = {"doc_id": "doc_id", "source": "source"} | STORED_SIZES
    if config.model is None:
        del wanted["load"]
    has_line = "line" in documents.column_names
    if pc.max(documents["piece"]).as_py():
        asked = [*((name, "sum") for name in STORED_SIZES), *([("line", "min")] if has_line else [])]
        documents = documents.group_by(["doc_id", "source"], use_threads=False).aggregate(asked)
        documents = documents.rename_columns([name.removesuffix("_sum") for name in documents.column_names])
        wanted |= {"line_min": "line"} if has_line else {}
    elif has_line:
        wanted["line"] = "line"
    return documents.select(list(wanted)).rename_columns(list(wanted.values()))


def _first_copies(documents: pa.Table) -> pa.ChunkedArray:
    """Whether a row is of the first copy of its document in the first epoch, which every document has."""
    return pc.and_(pc.equal(documents["copy_number"], 0), pc.equal(documents["epoch"], 0))

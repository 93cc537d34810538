"""The lengths of a dataset's documents, from its table alone."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from schemas.config import PackConfig

STORED_SIZES = {
    "length": "tokens",
    "n_images": "images",
    "n_patches": "patches",
    "load": "load",
    "truncated_tokens": "truncated",
}
"""Columns of ``documents.parquet`` that a plan needs, by what they are called there."""


def stored_lengths(documents: pa.Table, config: PackConfig) -> pa.Table:
    """What :func:`~packer_service.report.what_if.plan_table` takes: each document once, its pieces joined.

    Args:
        documents: ``doc_id``, ``piece``, ``copy_number``, ``epoch``, ``source`` and :data:`STORED_SIZES`.
        config: what the dataset was packed with. Where no model says what the encoder's work is, it follows from the
            configuration of the plan.
    """
    first = pc.and_(pc.equal(documents["copy_number"], 0), pc.equal(documents["epoch"], 0))
    documents = documents.filter(first)
    if pc.max(documents["piece"]).as_py():
        sums = [(name, "sum") for name in STORED_SIZES]
        documents = documents.group_by(["doc_id", "source"], use_threads=False).aggregate(sums)
        documents = documents.rename_columns([name.removesuffix("_sum") for name in documents.column_names])
    wanted = {"doc_id": "doc_id", "source": "source"} | STORED_SIZES
    if config.model is None:
        del wanted["load"]
    return documents.select(list(wanted)).rename_columns(list(wanted.values()))

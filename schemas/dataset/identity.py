"""The id of a dataset, which packing writes and ``verify`` derives again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import ModelEntry, TokenizerEntry

PLAN_COLUMNS = ("piece", "copy_number", "epoch", "pack_id", "start", "length", "aligned_length")

_BATCH_ROWS = 65_536
"""Rows whose ids are joined at once: an array of strings holds at most 2 GiB."""


def dataset_id(
    config: PackConfig, tokenizer: TokenizerEntry, model: ModelEntry | None, planned: Iterable[pa.Table]
) -> str:
    """SHA-256 of configuration, tokenizer, model and plan. It covers the content of what they name, no path.

    Every column of the plan has a hash of its own, so that the plan can come in parts and is read once.

    Args:
        config: the job's configuration.
        tokenizer: the tokenizer that made the tokens.
        model: the model that it is packed for, if any.
        planned: ``doc_id`` and :data:`PLAN_COLUMNS` of every planned document, by pack and start, in tables of any
            size; where no document was lost between plan and writing, that is ``documents.parquet``.
    """
    settings = {
        "config": config.model_dump(mode="json", exclude={"tokenizer", "model", "chat_template"}),
        "tokenizer": tokenizer.model_dump(mode="json"),
        "model": None if model is None else model.model_dump(mode="json"),
    }
    ids, columns = hashlib.sha256(), {name: hashlib.sha256() for name in PLAN_COLUMNS}
    for table in planned:
        for batch in table.select(["doc_id", *PLAN_COLUMNS]).to_batches(max_chunksize=_BATCH_ROWS):
            if batch.num_rows:
                ids.update(_joined(batch["doc_id"]))
            for name, column in columns.items():
                column.update(batch[name].to_numpy(zero_copy_only=False).astype("<i8", copy=False))
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for column in (ids, *columns.values()):
        digest.update(column.digest())
    return digest.hexdigest()


def _joined(doc_ids: pa.Array) -> bytes:
    """Every id as UTF-8, each followed by a zero byte."""
    strings = doc_ids.cast(pa.string())
    [joined] = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(strings)], pa.int32()), strings), "\0")
    return joined.as_buffer().to_pybytes() + b"\0"

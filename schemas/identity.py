"""The id of a dataset, which packing writes and ``verify`` derives again."""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa

from schemas.config import PackConfig
from schemas.manifest import ModelEntry, TokenizerEntry

PLAN_COLUMNS = ("piece", "copy_number", "epoch", "pack_id", "start", "length", "aligned_length")


def dataset_id(config: PackConfig, tokenizer: TokenizerEntry, model: ModelEntry | None, planned: pa.Table) -> str:
    """SHA-256 of configuration, tokenizer, model and plan. It covers the content of what they name, no path.

    Args:
        config: the job's configuration.
        tokenizer: the tokenizer that made the tokens.
        model: the model that it is packed for, if any.
        planned: ``doc_id`` and :data:`PLAN_COLUMNS` of every planned document, by pack and start; where no document
            was lost between plan and writing, that is ``documents.parquet``.
    """
    settings = {
        "config": config.model_dump(mode="json", exclude={"tokenizer", "model", "chat_template"}),
        "tokenizer": tokenizer.model_dump(mode="json"),
        "model": None if model is None else model.model_dump(mode="json"),
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for batch in planned.select(["doc_id"]).to_batches(max_chunksize=65_536):  # strings of a whole plan are large
        digest.update(b"".join(doc_id.encode() + b"\0" for doc_id in batch["doc_id"].to_pylist()))
    for name in PLAN_COLUMNS:
        digest.update(planned[name].to_numpy().astype("<i8", copy=False))
    return digest.hexdigest()

"""Columns of ``packs.parquet``, ``documents.parquet`` and ``rejects.parquet``."""

from __future__ import annotations

import pyarrow as pa

from preshard.schemas.dataset.table import Column, Columns, number, numbers, text
from preshard.schemas.errors import REJECT_CODES, REJECT_STAGES

MAX_SEQ_LEN = 2**27
"""Most tokens of a pack."""

MAX_PACKS_PER_SHARD = 2**16
"""One task writes a shard, and keeps the rows of its packs in memory."""

MAX_EPOCHS = 1000
"""A table of all documents holds each once for every epoch."""

_UINT32 = 2**32 - 1

PACK_COLUMNS: Columns = (
    number("pack_id", "the pack, in step order"),
    text("key", "`pack_id` in ten digits"),
    text("shard", "file name below `shards/`"),
    number("index_in_shard", "place among the shard's samples", most=MAX_PACKS_PER_SHARD - 1),
    number("offset", "byte of the sample's first tar header"),
    number("header_size", "bytes from there to the first crop's tar header, or to the sample's end", most=_UINT32),
    number("head_crc32c", "CRC-32C of `KEY.json`", most=_UINT32),
    number("size", "bytes of the whole sample, a multiple of 512"),
    *numbers("tokens in documents, and others; together `seq_len`", "n_tokens", "n_padding", most=MAX_SEQ_LEN),
    number("n_documents", "spans", most=MAX_SEQ_LEN),
    *numbers("units, crops, and patches that the vision encoder sees", "n_units", "n_images", "n_patches"),
    number("n_pooled_tokens", "pooled rows", most=MAX_SEQ_LEN),
    number("load", "the vision encoder's work for the pack's units, in multiplications"),
    number("attention_area", "pairs (query, key) that the mask allows"),
    number("attention_tiles", "tiles of 128 x 128, in natural order, with an allowed pair"),
    Column(
        name="cost",
        type=pa.float64(),
        means="training work in GFLOP, by the configured model; "
        "under `model.masks`, attention is that of its layers on average",
    ),
)

DOCUMENT_COLUMNS: Columns = (
    text("doc_id", "id of the document"),
    number("piece", "0 unless the document was split"),
    number("copy_number", "0 unless a mixture takes documents several times"),
    number("epoch", "0 unless there are several", most=MAX_EPOCHS - 1),
    text("source", "subset that the document is from"),
    number("pack_id", "its pack"),
    number("start", "its first token in the pack", most=MAX_SEQ_LEN),
    *numbers("tokens, without and with padding", "length", "aligned_length", most=MAX_SEQ_LEN),
    *numbers("units, crops and patches", "n_units", "n_images", "n_patches"),
    number("load", "the vision encoder's work for its units"),
    number("truncated_tokens", "tokens lost behind this piece"),
)

REJECT_COLUMNS: Columns = (
    text("doc_id", "id of the document"),
    text("source", "subset that it is from"),
    text("location", "its file and row, as `FILE:ROW`"),
    text("stage", "when it was rejected", REJECT_STAGES),
    text("code", "why", REJECT_CODES),
    text("message", "the same in words, with value, limit and remedy"),
)

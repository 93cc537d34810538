"""Columns of ``packs.parquet``, and limits of a pack."""

from __future__ import annotations

import pyarrow as pa

from preshard.schemas.dataset.table import Column, Columns, number, numbers, text

MAX_SEQ_LEN = 2**27
"""Most tokens of a pack."""

MAX_PACKS_PER_SHARD = 2**16
"""One task writes a shard, and keeps the rows of its packs in memory."""

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

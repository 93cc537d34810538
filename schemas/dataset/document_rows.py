"""Columns of ``documents.parquet`` and ``rejects.parquet``."""

from __future__ import annotations

from preshard.schemas.dataset.rows import MAX_SEQ_LEN
from preshard.schemas.dataset.table import Columns, number, numbers, text
from preshard.schemas.errors import REJECT_CODES, REJECT_STAGES

MAX_EPOCHS = 1000
"""A table of all documents holds each once for every epoch."""

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

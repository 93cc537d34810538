"""``manifest.json``, the file that makes a folder a dataset, and ``KEY.json``, the head of a sample. Versioned."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from schemas.layout import RankImages

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
RUN = "run.json"
SHARDS = "shards"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ShardEntry(_Record):
    """One tar file. ``first_pack`` is the ``pack_id`` of its first sample; the others follow without a gap."""

    name: str
    bytes: int
    sha256: str
    packs: int
    first_pack: int


class TableEntry(_Record):
    """One Parquet table."""

    name: str
    bytes: int
    sha256: str
    rows: int


class TokenizerEntry(_Record):
    """The tokenizer that made the tokens. ``vocab_size`` counts every id that can stand in ``tokens``."""

    name: str
    sha256: str
    vocab_size: int
    bos_id: int | None
    eos_id: int
    pad_id: int
    image_id: int


class Counts(_Record):
    """Totals. ``source_documents`` rows were read: each is counted in ``documents`` or in ``rejected``."""

    source_documents: int
    documents: int
    pieces: int
    rejected: int
    packs: int
    tokens: int
    padding_tokens: int
    truncated_tokens: int
    images: int


class Manifest(_Record):
    """Written last: without it a folder is no dataset."""

    format_version: int
    dataset_id: str
    preshard_version: str
    config: dict[str, Any]
    tokenizer: TokenizerEntry
    sources: list[str]
    counts: Counts
    tables: list[TableEntry]
    shards: list[ShardEntry]


class DocumentSpan(_Record):
    """Where a document (or a piece of one) lies in its pack, in tokens."""

    doc_id: str
    piece: int
    source: str
    start: int
    length: int
    aligned_length: int
    n_images: int


class StoredImage(_Record):
    """One crop. ``offset`` counts bytes from the first crop's tar header to this one's, ``size`` is its content's.

    ``unit`` is the row of ``cum_image_bounds`` that it belongs to; ``timestamp`` is in seconds from the clip's start,
    null for a still image.
    """

    doc_id: str
    unit: int
    width: int
    height: int
    timestamp: float | None
    offset: int
    size: int


class SampleHead(_Record):
    """``KEY.json``.

    ``cum_image_bounds`` and ``cum_token_pooling_bounds`` count crops and pooled rows up to and including each unit.
    ``image_shard_boundaries`` maps CP size, then rank, to that rank's part (see ``schemas.layout.RankImages``).
    """

    pack_id: int
    documents: list[DocumentSpan]
    cum_image_bounds: list[int]
    cum_token_pooling_bounds: list[int]
    image_shard_boundaries: dict[str, dict[str, RankImages]]
    images: list[StoredImage]

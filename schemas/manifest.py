"""``manifest.json``, the file that makes a folder a dataset, and ``KEY.json``, the head of a sample. Versioned."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from schemas.layout import RankImages

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
RUN = "run.json"
SHARDS = "shards"
WORK = ".work"
"""Folder inside the dataset that holds the finished work of an unfinished job. It is gone once the dataset is whole."""
PLANNED = "planned.json"
"""File in that folder that says how many ``shards`` there will be, so that others can show the progress."""

Natural = Annotated[int, Field(ge=0, lt=2**63)]
"""A count, id, size or position; also fits the int64 columns of the tables."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ShardEntry(_Record):
    """One tar file. ``first_pack`` is the ``pack_id`` of its first sample; the others follow without gaps."""

    name: str
    bytes: Natural
    sha256: str
    packs: Natural
    first_pack: Natural


class TableEntry(_Record):
    """One Parquet table."""

    name: str
    bytes: Natural
    sha256: str
    rows: Natural


class TokenizerEntry(_Record):
    """The tokenizer that produced the tokens. ``vocab_size`` covers every id that can occur in ``tokens``."""

    name: str
    sha256: str
    vocab_size: Natural
    bos_id: Natural | None
    eos_id: Natural
    pad_id: Natural
    image_id: Natural


class Counts(_Record):
    """Totals. Each of the ``source_documents`` rows that were read is counted in ``documents`` or in ``rejected``."""

    source_documents: Natural
    documents: Natural
    pieces: Natural
    rejected: Natural
    packs: Natural
    tokens: Natural
    padding_tokens: Natural
    truncated_tokens: Natural
    images: Natural


UnitKind = Literal["image", "frame", "frames"]
"""What a unit is: a still image with all of its crops, one frame of a video, or several that the encoder joins."""

UNIT_KINDS: tuple[UnitKind, ...] = get_args(UnitKind)

UNSEALED = "0" * 64
"""``sha256`` of a manifest while its own hash is computed."""


class Manifest(_Record):
    """Written last: a folder without it is not a dataset.

    ``unused_columns`` counts the source files that have a column that nothing reads, by the column's name, and
    ``unread_files`` the files in the source's folders that are no source, by a pattern of their names. ``sha256`` is
    that of the file's own bytes with this field as 64 zeros: no other file holds the manifest's hash.
    """

    format_version: int
    dataset_id: str
    preshard_version: str
    config: dict[str, Any]
    tokenizer: TokenizerEntry
    sources: list[str]
    unused_columns: dict[str, Natural]
    unread_files: dict[str, Natural]
    counts: Counts
    tables: list[TableEntry]
    shards: list[ShardEntry]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = UNSEALED


class DocumentSpan(_Record):
    """Where a document (or a piece of one) lies in its pack, in tokens."""

    doc_id: str
    piece: Natural
    source: str
    start: Natural
    length: Natural
    aligned_length: Natural
    n_images: Natural


class StoredImage(_Record):
    """One crop. ``offset`` is the distance in bytes from the tar header of the first crop to that of this one, and
    ``size`` the length of its content.

    ``unit`` is the row of ``cum_image_bounds`` that it belongs to; ``timestamp`` is in seconds from the clip's start,
    null for a still image.
    """

    doc_id: str
    unit: Natural
    width: Natural
    height: Natural
    timestamp: float | None
    offset: Natural
    size: Natural


class SampleHead(_Record):
    """``KEY.json``.

    ``cum_image_bounds`` and ``cum_token_pooling_bounds`` count crops and pooled rows up to and including each unit.
    ``image_shard_boundaries`` maps CP size, then rank, to that rank's part (see ``schemas.layout.RankImages``).
    """

    pack_id: Natural
    documents: list[DocumentSpan]
    cum_image_bounds: list[Natural]
    cum_token_pooling_bounds: list[Natural]
    image_shard_boundaries: dict[str, dict[str, RankImages]]
    images: list[StoredImage]

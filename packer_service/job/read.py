"""A planned document, read and rendered again (or taken out of its pack) so that it can be written, and its crops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from cachetools import LRUCache

from preshard.packer_service.ingest.cache import recent_values
from preshard.packer_service.ingest.decode import decode_crops
from preshard.packer_service.ingest.document import Document, Medium
from preshard.packer_service.ingest.media.stores import AHEAD
from preshard.packer_service.ingest.packed.dataset import open_dataset
from preshard.packer_service.ingest.packed.pieces import stored_pieces
from preshard.packer_service.ingest.pieces import render_pieces
from preshard.packer_service.ingest.source.file import DATASET, RowReference, SourceFile
from preshard.packer_service.ingest.source.files import load_rows, read_row
from preshard.packer_service.ingest.source.rows import parse_document, row_identity
from preshard.packer_service.ingest.text.configured import configured_tokenizer
from preshard.packer_service.job.plan import PlannedDocument
from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.config import PackConfig
from preshard.schemas.document_ids import id_stems
from preshard.schemas.errors import DocumentError

Pieces = list[RenderedDocument]

CACHED_TOKENS = 2**23
"""Most tokens of split documents that a process keeps: at some 30 bytes per token, a quarter of a GiB."""

_SPLIT: LRUCache[tuple[SourceFile, RowReference, PackConfig], Pieces] = recent_values(
    CACHED_TOKENS, lambda pieces: sum(map(len, pieces))
)
"""Documents of several pieces: each piece lies in another pack, and would render the whole document again."""


def read_planned(planned: PlannedDocument, config: PackConfig) -> RenderedDocument:
    """Reads a planned document again by its reference, and renders it, or takes it out of its pack.

    Raises:
        DocumentError: its file is gone, or it is not what was measured.
        OSError: the file system failed; no document is at fault.
    """
    pieces = _kept_pieces(planned, config) if config.oversize == "split" else _pieces(planned, config)
    rendered = pieces[planned.piece] if planned.piece < len(pieces) else None
    if rendered is None or len(rendered) != planned.length:
        now = "no such piece" if rendered is None else f"{len(rendered)} tokens"
        raise DocumentError("decode_failed", f"changed since it was measured: {planned.length} tokens then, {now} now")
    return rendered


def _kept_pieces(planned: PlannedDocument, config: PackConfig) -> Pieces:
    key = (planned.file, planned.reference, config)
    pieces = _SPLIT.get(key)
    if pieces is None:
        pieces = _pieces(planned, config)
        if len(pieces) > 1:
            _SPLIT[key] = pieces
    return pieces


def _pieces(planned: PlannedDocument, config: PackConfig) -> Pieces:
    return _taken_pieces(planned, config) if planned.file.kind == DATASET else _read_pieces(planned, config)


def read_ahead(documents: Sequence[PlannedDocument], config: PackConfig) -> None:
    """Reads what :func:`read_planned` is asked for next, several requests to a store at the same time.

    That is the packs that hold documents, and the rows of others; their images are on their way on return.

    Raises:
        OSError: the file system failed; no document is at fault.
    """
    packs: dict[SourceFile, list[int]] = {}
    for planned in documents:
        if planned.file.kind == DATASET:
            packs.setdefault(planned.file, []).append(planned.reference.offset)
    for file, pack_ids in packs.items():
        open_dataset(file).load(pack_ids)
    remote = [planned for planned in documents if planned.file.kind != DATASET and planned.file.is_remote]
    load_rows((planned.file, planned.reference) for planned in remote)
    AHEAD.forget()
    for planned in remote:
        AHEAD.expect(named_media(planned, config), planned.file.media)


def planned_crops(
    planned: PlannedDocument,
    rendered: RenderedDocument,
    config: PackConfig,
    *,
    first_unit: int,
    decode: Callable[..., list[Crop]],
) -> Iterator[Crop]:
    """The crops of a planned document, decoded by ``decode``.

    Raises:
        DocumentError: an image or video is missing, or cannot be decoded.
        OSError: the file system failed; no document is at fault.
    """
    return decode_crops(
        rendered, planned.file.media, config, doc_id=planned.doc_id, first_unit=first_unit, decode=decode
    )


def named_media(planned: PlannedDocument, config: PackConfig) -> list[Medium]:
    """The images and videos that a planned document names, by its row alone; none if it cannot be read any more.

    Raises:
        OSError: the file system failed; no document is at fault.
    """
    try:
        row = read_row(planned.file, planned.reference)
        return [] if isinstance(row, DocumentError) else _document(row, planned, config).media()
    except (FileNotFoundError, DocumentError):
        return []


def _taken_pieces(planned: PlannedDocument, config: PackConfig) -> Pieces:
    try:
        spans, number = open_dataset(planned.file).pack(planned.reference.offset).head.documents, planned.reference.size
        given_id = spans[number].doc_id if number < len(spans) else ""
        doc_id = given_id if _may_be(given_id, planned.doc_id) else planned.doc_id
        return [piece for piece, _ in stored_pieces(planned.file, planned.reference, doc_id, config)]
    except DocumentError as error:
        raise DocumentError("decode_failed", f"changed since it was measured: {error}") from None


def _may_be(given_id: str, doc_id: str) -> bool:
    """Whether a document of this id can come of a row of that id: others of the same id may have given it a number."""
    return given_id == doc_id or len(set(id_stems(pa.array([given_id, doc_id])).to_pylist())) == 1


def _document(row: Any, planned: PlannedDocument, config: PackConfig) -> Document:
    return parse_document(row, planned.file.form, config.ignore_columns)


def _read_pieces(planned: PlannedDocument, config: PackConfig) -> Pieces:
    try:
        row = read_row(planned.file, planned.reference)
    except FileNotFoundError:
        raise DocumentError("decode_failed", "the source file was removed after it was measured") from None
    if isinstance(row, DocumentError):
        raise DocumentError("decode_failed", f"changed since it was measured: {row}")
    given_id, _ = row_identity(row, config.ignore_columns)
    if given_id is not None and not _may_be(given_id, planned.doc_id):
        raise DocumentError("decode_failed", f"changed since it was measured: its id is now {given_id!r:.80}")
    document = _document(row, planned, config)
    pieces = render_pieces(document, planned.file.media, config, configured_tokenizer(config))
    return [piece for piece, _ in pieces]

"""A document of the plan, and the same document read again for writing. The media are probed, no pixel is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from packer_service.ingest.document import Document
from packer_service.ingest.media.shape import MediaShape
from packer_service.ingest.recent import Recent
from packer_service.ingest.source.files import RowReference, SourceFile, read_row
from packer_service.ingest.source.rows import parse_document, row_identity
from packer_service.ingest.text.tokenizer import Tokenizer
from packer_service.job.measure import pieces_of
from packer_service.packs.rendered import RenderedDocument
from schemas.config import PackConfig
from schemas.errors import DocumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedDocument:
    """A reference to a document (or a piece of one) and its place in the plan."""

    file: SourceFile
    reference: RowReference
    location: str
    doc_id: str
    source: str
    piece: int
    start: int
    length: int
    aligned_length: int
    truncated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadDocument:
    """A planned document, read and rendered again, its media probed but not decoded."""

    document: Document
    shapes: list[MediaShape]
    rendered: RenderedDocument


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReadPieces:
    """A document with everything that its pieces share."""

    document: Document
    shapes: list[MediaShape]
    pieces: list[RenderedDocument]


KEPT_TOKENS = 2**23
"""Most tokens of split documents that a process keeps, at about 30 bytes each."""

_SPLIT = Recent[_ReadPieces](KEPT_TOKENS, lambda read: sum(map(len, read.pieces)))
"""Documents of several pieces: each piece is of another pack, and would tokenise the whole document again."""


def read_planned(planned: PlannedDocument, config: PackConfig, tokenizer: Tokenizer) -> ReadDocument:
    """Reads a planned document again by its reference.

    Raises:
        DocumentError: its file is gone, or it is not what was measured.
        OSError: the file system failed, which is no document's fault.
    """
    key = (planned.file, planned.reference, config)
    read = _SPLIT.get(key)
    if read is None:
        read = _read_pieces(planned, config, tokenizer)
        if len(read.pieces) > 1:
            _SPLIT.keep(key, read)
    rendered = read.pieces[planned.piece] if planned.piece < len(read.pieces) else None
    if rendered is None or len(rendered) != planned.length:
        now = "no such piece" if rendered is None else f"{len(rendered)} tokens"
        raise DocumentError("decode_failed", f"changed since it was measured: {planned.length} tokens then, {now} now")
    return ReadDocument(document=read.document, shapes=read.shapes, rendered=rendered)


def _read_pieces(planned: PlannedDocument, config: PackConfig, tokenizer: Tokenizer) -> _ReadPieces:
    try:
        row = read_row(planned.file, planned.reference)
    except FileNotFoundError:
        raise DocumentError("decode_failed", "the source file is gone since it was measured") from None
    if isinstance(row, DocumentError):
        raise DocumentError("decode_failed", f"changed since it was measured: {row}")
    given_id, _ = row_identity(row)
    if given_id not in (None, planned.doc_id):
        raise DocumentError("decode_failed", f"changed since it was measured: its id is now {given_id!r:.80}")
    document = parse_document(row)
    pieces, shapes = pieces_of(document, planned.file.folder, config, tokenizer)
    return _ReadPieces(document=document, shapes=shapes, pieces=[piece for piece, _ in pieces])

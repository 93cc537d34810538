"""One fragment of the source to a table of lengths: the first half of the job, and the what-if without writing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from packer_service.ingest.document import Document
from packer_service.ingest.media.isolated import probe
from packer_service.ingest.media.shape import MediaShape
from packer_service.ingest.oversize import fit
from packer_service.ingest.render import render
from packer_service.ingest.source.files import Fragment, RowReference, read_fragment
from packer_service.ingest.source.rows import parse_document, row_identity
from packer_service.ingest.text.tokenizer import Tokenizer, load_tokenizer
from packer_service.layout.area import attention_area
from packer_service.packs.rendered import RenderedDocument, group_ids
from schemas.config import PackConfig
from schemas.errors import DocumentError
from schemas.sequence import MaskArrays

MEASURED = pa.schema(
    [
        ("row", pa.int64()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("doc_id", pa.string()),
        ("source", pa.string()),
        ("piece", pa.int64()),
        ("tokens", pa.int64()),
        ("images", pa.int64()),
        ("area", pa.int64()),
        ("truncated", pa.int64()),
        ("stage", pa.string()),
        ("code", pa.string()),
        ("message", pa.string()),
    ]
)
"""One row a piece of a document, or a rejected document (``code`` is not null). ``row`` counts in the fragment from 0,
``offset`` and ``size`` say where the row lies, ``area`` counts the allowed pairs of the document's mask."""


def measure_fragment(fragment: Fragment, config: PackConfig) -> tuple[pa.Table, int]:
    """Tokenises and probes every row of a fragment, decoding no pixel.

    Returns:
        The table, and how many lines the fragment has (blank ones too).
    """
    tokenizer = load_tokenizer(config.tokenizer, config.special_tokens)
    read = read_fragment(fragment)
    rows = [
        measured
        for number, reference, row in read.rows
        for measured in _measure_row(row, number, reference, fragment.file.folder, config, tokenizer)
    ]
    return pa.Table.from_pylist(rows, schema=MEASURED), read.n_lines


def _measure_row(
    row: Any, number: int, reference: RowReference, folder: str, config: PackConfig, tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    doc_id, source = row_identity(row)
    where = {"row": number, "offset": reference.offset, "size": reference.size, "doc_id": doc_id, "source": source}
    stage = "read"
    try:
        if isinstance(row, DocumentError):
            raise row
        document = parse_document(row)
        stage = "measure"
        pieces, _ = pieces_of(document, folder, config, tokenizer)
    except DocumentError as error:
        return [{**where, "stage": stage, "code": error.code, "message": str(error)}]
    return [
        {
            **where,
            "piece": number,
            "tokens": len(piece),
            "images": piece.n_images,
            "area": _area(piece, config.bidirectional),
            "truncated": lost,
        }
        for number, (piece, lost) in enumerate(pieces)
    ]


def pieces_of(
    document: Document, folder: str, config: PackConfig, tokenizer: Tokenizer
) -> tuple[list[tuple[RenderedDocument, int]], list[MediaShape]]:
    """A document's pieces, each with the tokens lost behind it, and the shapes of its media.

    The same for the same document and files: measuring and writing both call it.

    Raises:
        DocumentError: a media is missing or broken, or the document does not fit.
        OSError: the file system failed, which is no document's fault.
    """
    shapes = [probe(media, folder, config) for media in document.media()]
    rendered = render(
        document,
        shapes,
        tokenizer,
        pooled_per_crop=config.vision.pooled_per_crop,
        annotation_weight=config.annotation_weight,
    )
    pieces = fit(rendered, seq_len=config.seq_len, max_images=config.max_images, oversize=config.oversize)
    return pieces, shapes


def _area(piece: RenderedDocument, bidirectional: str) -> int:
    """Allowed pairs of a document's mask."""
    groups = group_ids(piece.unit_ids, bidirectional)
    if not piece.n_branches and (groups < 0).all():  # most documents of a text corpus, at a tenth of the time
        return len(piece) * (len(piece) + 1) // 2
    return attention_area(MaskArrays(doc_ids=piece.tokens * 0, branch_ids=piece.branch_ids, group_ids=groups))

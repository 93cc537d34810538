"""A document while its shard is written: a row of the plan, read and rendered again (or taken out of its pack)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from cachetools import LRUCache

from preshard.packer_service.ingest.document import Document, Medium
from preshard.packer_service.ingest.fetch import recent_values
from preshard.packer_service.ingest.media.stores import AHEAD, reading_row
from preshard.packer_service.ingest.packed.dataset import open_dataset
from preshard.packer_service.ingest.render import render_row
from preshard.packer_service.ingest.source.file import DATASET, RowReference, SourceFile, SourceRow
from preshard.packer_service.ingest.source.files import load_rows, read_row
from preshard.packer_service.ingest.source.rows import parse_row, row_identity
from preshard.packer_service.job.plan import PlannedShardRef, segment_batches
from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import MARK, PackConfig
from preshard.schemas.dataset.document_ids import id_stems
from preshard.schemas.errors import DocumentError

CACHED_TOKENS = 2**23
"""Most tokens of split documents that a process keeps: at some 30 bytes per token, a quarter of a GiB."""

_SPLIT: LRUCache[tuple[SourceFile, RowReference, PackConfig], list[RenderedDocument]] = recent_values(
    CACHED_TOKENS, lambda pieces: sum(map(len, pieces))
)
"""Documents of several pieces: each piece lies in another pack, and would render the whole document again."""


@dataclass(kw_only=True, slots=True, eq=False)
class ShardDocument:
    """A document, or a piece of one, from the plan to the shard.

    Attributes:
        row: of the plan: its id, where it lies in the source, and its place in the pack.
        file: that its row lies in.
        source: what the tables say of where it is from.
        rendered: its arrays, while its pack is built.
        crops: its pictures, whose units count from 0 in the document.
        error: why it is not in the pack.
    """

    row: dict[str, Any]
    file: SourceFile
    source: str
    rendered: RenderedDocument | None = None
    crops: list[Crop] = field(default_factory=list)
    error: DocumentError | None = None

    @property
    def reference(self) -> RowReference:
        return RowReference(offset=self.row["offset"], size=self.row["size"])

    @property
    def location(self) -> str:
        return self.file.location(self.row["line"])

    @property
    def is_stored(self) -> bool:
        """Whether a packed dataset holds it, with its crops as bytes."""
        return self.file.kind == DATASET

    @property
    def arrays(self) -> RenderedDocument:
        assert self.rendered is not None, "asked only for documents that were read"
        return self.rendered

    @property
    def n_tokens(self) -> int:
        return 0 if self.rendered is None else len(self.rendered)

    @property
    def n_units(self) -> int:
        return 0 if self.rendered is None else len(self.rendered.units)

    def release(self) -> None:
        """Lets go of its arrays and pictures: its pack is built."""
        self.rendered, self.crops = None, []


def read_shard(
    shard: PlannedShardRef, plan: Folder, files: Sequence[SourceFile], sources: Sequence[str]
) -> list[list[ShardDocument]]:
    """The documents of each pack of a shard.

    Args:
        shard: where its packs stand.
        plan: holds the plan's segments.
        files: to which rows of the plan refer by number.
        sources: likewise.
    """
    packs = list[list[ShardDocument]]()
    for part in shard.parts:
        of_part: list[list[ShardDocument]] = [[] for _ in range(part.first, part.end)]
        for table in segment_batches(plan, part):
            for row in table.to_pylist():
                document = ShardDocument(row=row, file=files[row["file"]], source=sources[row["source_number"]])
                of_part[row["pack"] - part.first].append(document)
        packs += of_part
    return packs


def read_document(document: ShardDocument, config: PackConfig) -> None:
    """Reads a document again by its reference, and renders it, or takes it out of its pack; no pixel is decoded.

    It gets an error where its file is gone, or where it is not what was measured.

    Raises:
        OSError: the file system failed; no document is at fault.
    """
    number, length = document.row["piece"], document.row["length"]
    try:
        with reading_row(document.location):
            pieces = _pieces(document, config)
            found = pieces[number] if number < len(pieces) else None
            if found is None or len(found) != length:
                now = "no such piece" if found is None else f"{len(found)} tokens"
                raise _changed(f"{length} tokens then, {now} now")
        marked = document.row.get(MARK)
        document.rendered = found if marked is None else replace(found, kept={**found.kept, MARK: marked})
    except DocumentError as error:
        document.error = error


def _pieces(document: ShardDocument, config: PackConfig) -> list[RenderedDocument]:
    key = (document.file, document.reference, config)
    pieces = _SPLIT.get(key) if config.oversize == "split" else None
    if pieces is None:
        pieces = _render(document, config)
        if config.oversize == "split" and len(pieces) > 1:
            _SPLIT[key] = pieces
    return pieces


def _render(document: ShardDocument, config: PackConfig) -> list[RenderedDocument]:
    try:
        return render_row(_source_row(document, config), config)
    except DocumentError as error:
        if document.is_stored:
            raise _changed(str(error)) from None
        raise


def _source_row(document: ShardDocument, config: PackConfig) -> SourceRow:
    """The row of the source that a row of the plan refers to, as it is now."""
    reference, doc_id = document.reference, str(document.row["doc_id"])
    said: Document | None = None
    if document.is_stored:
        spans = open_dataset(document.file).pack(reference.offset).head.documents
        given_id = spans[reference.size].doc_id if reference.size < len(spans) else ""
        doc_id = given_id if _may_be(given_id, doc_id) else doc_id
    else:
        try:
            row = read_row(document.file, reference)
        except FileNotFoundError:
            raise DocumentError("decode_failed", "the source file was removed after it was measured") from None
        if isinstance(row, DocumentError):
            raise _changed(str(row))
        own_id, _ = row_identity(row, config.ignore_columns)
        if own_id is not None and not _may_be(own_id, doc_id):
            raise _changed(f"its id is now {own_id!r:.80}")
        said = parse_row(row, document.file.form, config)
    return SourceRow(
        file=document.file, number=0, reference=reference, doc_id=doc_id, source=document.source, document=said
    )


def _changed(what: str) -> DocumentError:
    return DocumentError("decode_failed", f"changed since it was measured: {what}")


def _may_be(given_id: str, doc_id: str) -> bool:
    """Whether a document of this id can come of a row of that id: others of the same id may have given it a number."""
    return given_id == doc_id or len(set(id_stems(pa.array([given_id, doc_id])).to_pylist())) == 1


def read_ahead(documents: Sequence[ShardDocument], config: PackConfig) -> None:
    """Reads what :func:`read_document` is asked for next, several requests to a store at the same time.

    That is the packs that hold documents, and the rows of others; their images are on their way on return.

    Raises:
        OSError: the file system failed; no document is at fault.
    """
    packs: dict[SourceFile, list[int]] = {}
    for document in documents:
        if document.is_stored:
            packs.setdefault(document.file, []).append(document.row["offset"])
    for file, pack_ids in packs.items():
        open_dataset(file).load(pack_ids)
    remote = [document for document in documents if not document.is_stored and document.file.is_remote]
    load_rows((document.file, document.reference) for document in remote)
    AHEAD.forget()
    for document in remote:
        AHEAD.expect(named_media(document, config), document.file.media)


def named_media(document: ShardDocument, config: PackConfig) -> list[Medium]:
    """The images and videos that a document names, by its row alone; none if it cannot be read any more.

    Raises:
        OSError: the file system failed; no document is at fault.
    """
    try:
        row = read_row(document.file, document.reference)
        if isinstance(row, DocumentError):
            return []
        return parse_row(row, document.file.form, config).media()
    except (FileNotFoundError, DocumentError):
        return []

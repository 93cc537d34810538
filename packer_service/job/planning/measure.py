"""One fragment of the source to a table of lengths: the first half of the job, and all of ``preshard plan``."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from preshard.packer_service.ingest.document import Document, Medium, Message
from preshard.packer_service.ingest.media.reach import is_absolute
from preshard.packer_service.ingest.media.shape import PlacedMedium, VideoFrames
from preshard.packer_service.ingest.media.stores import AHEAD, reading_row
from preshard.packer_service.ingest.packed.dataset import open_dataset
from preshard.packer_service.ingest.render import render_row
from preshard.packer_service.ingest.source.containers.compressed import keep_copy, spooled
from preshard.packer_service.ingest.source.file import DATASET, Fragment, RowReference, SourceFile, SourceRow
from preshard.packer_service.ingest.source.files import read_fragment
from preshard.packer_service.ingest.source.forms.detect import find_form
from preshard.packer_service.ingest.source.rows import parse_row, row_identity, unused_columns
from preshard.packer_service.job.planning.identify import identify
from preshard.packer_service.job.planning.measured import (
    MAX_UNUSED,
    MEASURED,
    Measured,
    MeasuredCounts,
    keep_measured,
)
from preshard.packer_service.job.planning.where import filtered_documents, filtered_rows
from preshard.packer_service.layout.area import attention_area
from preshard.packer_service.packs.measures import UnitTotals
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError
from preshard.schemas.files.filesystem import split_query
from preshard.schemas.sequence import IGNORE_INDEX, MaskArrays
from preshard.schemas.tables import reason_columns

AHEAD_ROWS = 16
"""Most rows that wait while the images of those before them are read."""
LOADED_PACKS = 16
"""Packs of a dataset that are read at the same time."""
MAX_UNUSED_NAME = 80
"""Most characters of the name of an unused column."""

LATER_FIELDS = ("answer", "tokens", "values", "kept", "unfilled")
"""Fields that rows of earlier versions did not have: without them a row keeps its hash, by which equal ids are
numbered."""


def measure_and_keep(item: tuple[int, Fragment], config: PackConfig, work: str) -> MeasuredCounts:
    """Runs in a task: measures a fragment and keeps its table under the fragment's number.

    Of a compressed file it keeps a copy first that can be read at any position, as the file itself cannot.
    """
    index, fragment = item
    started = time.monotonic()
    if fragment.file.copy is not None:
        path, query = split_query(fragment.file.copy)
        folder, _, name = path.rpartition("/")
        with Folder(folder + query).writer(name) as sink:
            keep_copy(spooled(fragment.file), sink)
    found = measure_fragment(fragment, config)
    return keep_measured(Folder(work), index, found, time.monotonic() - started)


def measure_fragment(fragment: Fragment, config: PackConfig) -> Measured:
    """Tokenises and probes every row of a fragment; no pixel is decoded. Of a dataset nothing is even tokenised."""
    measured, filtered = list[dict[str, Any]](), Counter[str]()
    if fragment.file.kind == DATASET:
        source = open_dataset(fragment.file)
        stored = source.rows(fragment.start, fragment.end)
        kept = None
        if config.where is not None:
            kept = filtered_documents(source.documents_of(fragment.start, fragment.end), config.where)
        for row in _load_ahead(stored, fragment):
            if kept is None or kept[row.number]:
                measured += measure_row(row, fragment, config)[0]
            else:
                filtered[row.source] += 1
        return Measured(pa.Table.from_pylist(measured, schema=MEASURED), len(stored), [], filtered)
    read, unused = read_fragment(fragment), set[str]()
    rows = filtered_rows(read.rows, fragment.file, config, filtered)
    for row in parse_ahead(rows, fragment.file, config, unused):
        measured += measure_row(row, fragment, config)[0]
    names = sorted({_plain(name) for name in unused - set(config.ignore_columns)})
    return Measured(pa.Table.from_pylist(measured, schema=MEASURED), read.n_lines, names[:MAX_UNUSED], filtered)


def _plain(name: str) -> str:
    """The name of a column as a table of results can hold it."""
    return name[:MAX_UNUSED_NAME].encode("utf-8", "replace").decode()


def parse_ahead(
    rows: Iterable[tuple[int, RowReference, Any]], file: SourceFile, config: PackConfig, unused: set[str]
) -> Iterator[SourceRow]:
    """Rows and what they say. Where that shows images in a store, those of the next rows are read meanwhile.

    ``unused`` gets the names of fields that nothing reads.
    """
    AHEAD.forget()
    waiting, form = deque[SourceRow](), find_form(file.form)
    for number, reference, content in rows:
        if isinstance(content, dict) and len(unused) < MAX_UNUSED:
            unused.update(unused_columns(content, form, config))
        doc_id, source = row_identity(content, config.ignore_columns, file.source)
        row = SourceRow(
            file=file,
            number=number,
            reference=reference,
            doc_id=doc_id,
            source=source,
            document=_parsed(content, file, config),
        )
        n_ahead = AHEAD.expect(_media(row), file.media)
        waiting.append(row)
        while waiting and (not n_ahead or len(waiting) > AHEAD_ROWS):
            yield waiting.popleft()
    yield from waiting


def _parsed(content: Any, file: SourceFile, config: PackConfig) -> Document | DocumentError:
    if isinstance(content, DocumentError):
        return content
    try:
        return parse_row(content, file.form, config, file.unread)
    except DocumentError as error:
        return error


def _media(row: SourceRow) -> list[Medium]:
    return row.document.media() if isinstance(row.document, Document) and not row.document.is_plain else []


def _load_ahead(rows: Iterable[SourceRow], fragment: Fragment) -> Iterator[SourceRow]:
    """The documents that have their first (or only) place in some packs of a dataset; packs are read together."""
    source, loaded = open_dataset(fragment.file), fragment.start
    for row in rows:
        if source.is_first(row):
            first = row.reference.offset
            if first >= loaded:
                loaded = min(first + LOADED_PACKS, fragment.end)
                source.load(range(first, loaded))
            yield row


def measure_row(
    row: SourceRow, fragment: Fragment, config: PackConfig
) -> tuple[list[dict[str, Any]], Sequence[RenderedDocument]]:
    """A row of ``MEASURED`` for each piece of a document, and the pieces; of a rejected one a row that says why."""
    place = row.reference
    where = {"row": row.number, "offset": place.offset, "size": place.size, "doc_id": row.doc_id, "source": row.source}
    if isinstance(row.document, DocumentError):
        return [{**where, **reason_columns("read", row.document)}], ()
    if row.document is not None:
        where["content"] = _row_hash(row.document, row)
    try:
        with reading_row(_place(fragment, row)):
            pieces = render_row(row, config)
            identity = identify(row, pieces, config)
    except DocumentError as error:
        return [{**where, **reason_columns("measure", error)}], ()
    if row.document is None:
        where["content"] = _stored_hash(pieces, row.source)
    first, *others = _lengths(where, pieces)
    return [first | identity, *others], pieces


def _place(fragment: Fragment, row: SourceRow) -> str:
    """Name in a message of a row whose number in its file is not known yet, unless it lies in the first fragment."""
    whole, file = not fragment.start, fragment.file
    return file.location(row.number + 1) if whole else f"{file.label}, offset {row.reference.offset}"


def _lengths(where: dict[str, Any], pieces: Sequence[RenderedDocument]) -> list[dict[str, Any]]:
    """One row for each piece of a document."""
    rendered, thinned_to = _number(_digest_of(pieces)), _thinned_to(pieces[0])
    return [
        {
            **where,
            "rendered": rendered,
            "piece": number,
            "tokens": len(piece),
            "images": totals.n_images,
            "patches": totals.n_patches,
            "load": totals.load,
            "area": _area(piece),
            "loss_weight": float(piece.loss_weights[piece.labels != IGNORE_INDEX].sum(dtype=np.float64)),
            "truncated": piece.truncated,
            "thinned_to": thinned_to,
        }
        for number, piece in enumerate(pieces)
        for totals in (UnitTotals.of(piece.units),)
    ]


def _thinned_to(piece: RenderedDocument) -> float | None:
    """The largest time between frames of a video with fewer than were asked for; a stored document does not say it."""
    placed = (part for medium in piece.media for part in medium if isinstance(part, PlacedMedium))
    shapes = [each.shape for each in placed]
    steps = [shape.thinned_to for shape in shapes if isinstance(shape, VideoFrames) and shape.thinned_to is not None]
    return max(steps, default=None)


def _row_hash(document: Document, row: SourceRow) -> int:
    """A hash of what a row says, whatever container it lies in; an image or video counts by its name, or its bytes."""
    relative = [medium.uri for medium in _media(row) if medium.uri is not None and not is_absolute(medium.uri)]
    beneath = row.file.beneath_of(relative) if relative else None
    said = json.dumps([document, row.source, beneath], default=_in_json)
    return _number(blake2b(said.encode(), digest_size=8))


def _in_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return blake2b(value).hexdigest()
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, blake2b(value.tobytes()).hexdigest()]
    given = {each.name: getattr(value, each.name) for each in fields(value)}
    bare = (
        {name for name in LATER_FIELDS if given.get(name) in (None, (), 0)}
        if isinstance(value, Document | Message)
        else set()
    )
    return [type(value).__name__, *(said for name, said in given.items() if name not in bare)]


def _stored_hash(pieces: Sequence[RenderedDocument], source: str) -> int:
    """A hash of what a packed document is: of its arrays and, by their checksums, its crops."""
    digest = _digest_of(pieces)
    for piece in pieces:
        of_units = [piece.media[number].images for number in piece.units.numbers.tolist()]
        digest.update(np.array([image.crc32c for images in of_units for image in images], "<u4").tobytes())
    digest.update(source.encode())
    if pieces[0].kept:
        digest.update(json.dumps(dict(pieces[0].kept)).encode())
    return _number(digest)


def _digest_of(pieces: Sequence[RenderedDocument]) -> blake2b:
    digest = blake2b(digest_size=8)
    for piece in pieces:
        for array in (piece.tokens, piece.labels, piece.loss_weights, piece.branch_ids, piece.units.grids):
            digest.update(array.tobytes())
        for name in sorted(piece.columns):
            digest.update(piece.columns[name].tobytes())
    return digest


def _number(digest: blake2b) -> int:
    return int.from_bytes(digest.digest(), "little")


def _area(piece: RenderedDocument) -> int:
    """Allowed pairs of a document's mask."""
    if piece.n_branches:
        masks = {"branch_ids": piece.branch_ids, "group_ids": piece.group_ids}
        return attention_area(MaskArrays(doc_ids=piece.tokens * 0, **masks))
    # Without branches a token sees all before it, and the later ones of its group: a tenth of the time.
    members = np.bincount(piece.group_ids[piece.group_ids >= 0])
    return len(piece) * (len(piece) + 1) // 2 + int((members * (members - 1) // 2).sum())

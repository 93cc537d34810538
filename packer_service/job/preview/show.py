"""``preshard show SOURCE``: one document as it would be packed. Nothing is written, and no pixel is decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from preshard.packer_service.ingest.carried import carried_decoder
from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.ingest.media.shape import PlacedMedium, VideoFrames
from preshard.packer_service.ingest.packed.dataset import PackedDatasetSource, open_dataset
from preshard.packer_service.ingest.render import render_pieces
from preshard.packer_service.ingest.source.file import DATASET, Fragment, SourceFile, SourceRow
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment
from preshard.packer_service.ingest.source.forms.detect import find_form
from preshard.packer_service.ingest.source.rows import parse_row, row_identity
from preshard.packer_service.ingest.text.configured import configured_tokenizer
from preshard.packer_service.job.sources import find_sources
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.report.document import ShownDocument, ShownMedium, ShownPiece, ShownUnit, document_spans
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError, DocumentError, PreshardError
from preshard.schemas.files.printed import several
from preshard.schemas.manifest import UNIT_KINDS
from preshard.schemas.sequence import IGNORE_INDEX

PACKS_AT_ONCE = 64
"""Packs of a dataset whose documents are listed at once."""


class RejectedError(PreshardError):
    """The row that was asked for would be rejected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """A row of a source, and where it is from."""

    row: Any
    fragment: Fragment
    location: str


def show_document(
    sources: Sequence[str],
    config: PackConfig,
    *,
    row: str | None = None,
    doc_id: str | None = None,
    media: AllowedMedia | None = None,
) -> ShownDocument:
    """One document as it would be packed.

    Args:
        sources: files and folders: paths or URIs.
        config: the job's configuration.
        row: the number of a row, counted from 1 through all files, or its file and row as rejects name them
            (``FILE:ROW``); without it and ``doc_id``, the first row is shown.
        doc_id: its id.
        media: what rows may reach besides the folders of the sources.

    Raises:
        ConfigError: a source does not exist, or has no such row.
        RejectedError: the row would be rejected, with the reason.
    """
    media = media or AllowedMedia()
    files = find_sources(sources, config, media).files
    packed = [file for file in files if file.kind == DATASET]
    if packed:
        if len(files) > 1:
            raise ConfigError(f"SOURCE {packed[0].uri}: is a packed dataset; show it alone")
        return _show_packed(packed[0], row if row or doc_id else "1", doc_id)
    tokenizer = configured_tokenizer(config)
    found = _find(list_fragments(files), row if row or doc_id else "1", doc_id, config)
    given_id, source = row_identity(found.row, config.ignore_columns, found.fragment.file.source)
    try:
        if isinstance(found.row, DocumentError):
            raise found.row
        document = parse_row(found.row, found.fragment.file.form, config, found.fragment.file.unread)
        pieces = render_pieces(document, found.fragment.file.media, config)
    except DocumentError as error:
        raise RejectedError(f"{found.location}: would be rejected: {error.code}: {error}") from None
    probed = pieces[0].media
    return ShownDocument(
        doc_id=given_id or found.location,
        source=source,
        location=found.location,
        form=find_form(found.fragment.file.form).title,
        media=[_medium(medium, placed, config) for medium, placed in probed],
        pieces=[_piece(piece, tokenizer.decode, _rendered_units(piece)) for piece in pieces],
    )


def _show_packed(file: SourceFile, wanted: str | None, doc_id: str | None) -> ShownDocument:
    """One document of a dataset, or one piece of it, as it lies in its pack; rows are those of ``documents.parquet``.

    Raises:
        ConfigError: there is no such row, or the dataset does not carry its tokenizer.
        RejectedError: its pack is damaged.
    """
    source, before = open_dataset(file), 0
    decode = carried_decoder(file.uri, source.manifest)
    for first in range(0, source.n_packs, PACKS_AT_ONCE):
        rows = source.rows(first, min(first + PACKS_AT_ONCE, source.n_packs))
        for number, row in enumerate(rows, start=before + 1):
            if wanted == str(number) or row.doc_id == doc_id:
                return _packed_document(source, row, f"{file.label}:{number}", decode)
        before += len(rows)
    asked = f"--row {wanted}" if wanted is not None else f"--id {doc_id}"
    raise ConfigError(f"{asked}: SOURCE {file.uri} has no such document; it holds {before}, counted from 1")


def _packed_document(
    source: PackedDatasetSource, row: SourceRow, location: str, decode: Callable[[Sequence[int]], str]
) -> ShownDocument:
    number = row.reference.size
    try:
        pack = source.pack(row.reference.offset)
        rendered = replace(pack.document(number), truncated=row.truncated)
    except DocumentError as error:
        raise RejectedError(f"{location}: {error}") from None
    parts = []
    for place in pack.head.token_order:
        unit = pack.head.units[place]
        images = [image for image in pack.head.images if image.unit == place]
        times = dict.fromkeys(image.timestamp for image in images if image.timestamp is not None)
        crops = [(image.width, image.height) for image in images]
        if unit.document == number:
            parts.append({"medium": unit.medium, "crops": crops, "timestamps": [*times]})
    return ShownDocument(
        doc_id=row.doc_id or location,
        source=row.source,
        location=location,
        form=None,
        media=[],
        pieces=[_piece(rendered, decode, _units(rendered, parts))],
    )


def _find(fragments: Sequence[Fragment], wanted: str | None, doc_id: str | None, config: PackConfig) -> _Found:
    """
    Raises:
        ConfigError: there is no such row.
    """
    number, lines_before, before = 0, dict.fromkeys((fragment.file for fragment in fragments), 0), 0
    for fragment in fragments:
        read = read_fragment(fragment)
        for place, _, row in read.rows:
            number = before + place + 1
            location = fragment.file.location(lines_before[fragment.file] + place + 1)
            given_id, _ = row_identity(row, config.ignore_columns)
            if wanted in (str(number), location) or (doc_id is not None and doc_id in (given_id, location)):
                return _Found(row=row, fragment=fragment, location=location)
        before += read.n_lines
        lines_before[fragment.file] += read.n_lines
    asked = f"--row {wanted}" if wanted is not None else f"--id {doc_id}"
    rows = f"the source holds {several(number, 'row')}"
    if doc_id is not None:
        hint = "pack numbers rows of one id, show them by" if "#" in doc_id else "take its number, by"
        raise ConfigError(f"{asked}: no row has this id; {rows}; {hint} --row FILE:N")
    raise ConfigError(f"{asked}: there is no such row; {rows}, from 1 and including blank lines; give N or FILE:N")


def _medium(medium: Medium, placed: PlacedMedium, config: PackConfig) -> ShownMedium:
    return ShownMedium(
        kind=medium.kind,
        name=medium.label,
        width=placed.shape.width,
        height=placed.shape.height,
        clip=(medium.start, medium.end) if medium.kind == "video" else None,
        thinned_to=placed.shape.thinned_to if isinstance(placed.shape, VideoFrames) else None,
        units=placed.n_units,
        backend=config.images.backend if config.model is not None and medium.kind == "image" else None,
    )


def _piece(rendered: RenderedDocument, decode: Callable[[Sequence[int]], str], shown: list[ShownUnit]) -> ShownPiece:
    units = rendered.units
    return ShownPiece(
        tokens=len(rendered),
        loss_tokens=int((rendered.labels != IGNORE_INDEX).sum()),
        lost_tokens=rendered.truncated,
        images=rendered.n_images,
        patches=int(units.patches.sum()),
        shared_tokens=rendered.n_shared,
        annotations=rendered.n_branches,
        preference=rendered.preference,
        units=shown,
        spans=document_spans(
            tokens=rendered.tokens,
            labels=rendered.labels,
            loss_weights=rendered.loss_weights,
            branch_ids=rendered.branch_ids,
            position_ids=np.atleast_2d(rendered.position_ids),
            unit_edges=units.edges,
            decode=decode,
        ),
    )


def _rendered_units(rendered: RenderedDocument) -> list[ShownUnit]:
    shown = [part for number, (_, placed) in enumerate(rendered.media) for part in _parts(number, placed)]
    return _units(rendered, [shown[number] for number in rendered.units.numbers])


def _units(rendered: RenderedDocument, parts: Sequence[dict[str, Any]]) -> list[ShownUnit]:
    units = rendered.units
    return [
        ShownUnit(
            number=i,
            **parts[i],
            kind=UNIT_KINDS[units.kinds[i]],
            start=int(units.edges[i, 0]),
            end=int(units.edges[i, 1]),
            rows=int(units.rows[i]),
            patches=int(units.patches[i]),
            grid=tuple(units.grids[i].tolist()),
        )
        for i in range(len(units))
    ]


def _parts(number: int, placed: PlacedMedium) -> list[dict[str, Any]]:
    """Entry of each unit of an image or video: number of its medium, sizes of its crops, and times of its frames."""
    units = [placed.placement.units[i] for i in placed.numbers]
    times: Sequence[float] = placed.shape.timestamps.tolist() if isinstance(placed.shape, VideoFrames) else []
    return [
        {
            "medium": number,
            "crops": [crop.size for crop in unit.crops],
            "timestamps": [
                times[frame] for frame in dict.fromkeys(crop.frame for crop in unit.crops) if frame is not None
            ],
        }
        for unit in units
    ]

"""One shard from references: read its documents again, decode, lay out, write. The second half of the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from packer_service.ingest.media.crops import EncodedCrop
from packer_service.ingest.media.image import ImageCrops
from packer_service.ingest.media.isolated import crops as crops_of
from packer_service.ingest.text.tokenizer import Tokenizer, load_tokenizer
from packer_service.job.documents import PlannedDocument, ReadDocument, read_planned
from packer_service.packs.balance import BalanceRows
from packer_service.packs.build import lay_out, pack_figures
from packer_service.packs.rendered import RenderedDocument
from packer_service.shards.store import Folder
from packer_service.shards.write import Crop, Sample, SamplePlace, WrittenShard, write_shard
from schemas.config import PackConfig
from schemas.errors import DocumentError
from schemas.manifest import DocumentSpan, SampleHead
from schemas.tables import DOCUMENTS, PACKS, REJECTS


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardTask:
    """Everything that one task needs to write one shard; no pixel and no text among it."""

    name: str
    first_pack: int
    packs: list[list[PlannedDocument]]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltShard:
    """A written shard and its rows of every table."""

    name: str
    size: int
    sha256: str
    first_pack: int
    tables: dict[str, pa.Table]


def build_shard(task: ShardTask, config: PackConfig, folder: Folder) -> BuiltShard:
    """Writes one shard. A document that cannot be read any more leaves padding, and a row of rejects."""
    rows = _ShardRows()
    tokenizer = load_tokenizer(config.tokenizer, config.special_tokens)
    samples = (
        _build_sample(task.first_pack + i, planned, config, tokenizer, rows) for i, planned in enumerate(task.packs)
    )
    written = write_shard(folder, task.name, samples, config.image_format)
    return BuiltShard(
        name=task.name,
        size=written.size,
        sha256=written.sha256,
        first_pack=task.first_pack,
        tables=rows.tables(task.name, written),
    )


@dataclass(kw_only=True)
class _ShardRows:
    """Table rows of a shard as its samples are made."""

    packs: list[dict[str, int | float | str]] = field(default_factory=list)
    documents: list[dict[str, object]] = field(default_factory=list)
    rejects: list[dict[str, object]] = field(default_factory=list)
    balance: BalanceRows = field(default_factory=BalanceRows)

    def tables(self, name: str, written: WrittenShard) -> dict[str, pa.Table]:
        packs = [
            {**row, "shard": name, "index_in_shard": i, **_place_columns(place)}
            for i, (row, place) in enumerate(zip(self.packs, written.places, strict=True))
        ]
        return {
            "packs.parquet": pa.Table.from_pylist(packs, schema=PACKS),
            "documents.parquet": pa.Table.from_pylist(self.documents, schema=DOCUMENTS),
            "rejects.parquet": pa.Table.from_pylist(self.rejects, schema=REJECTS),
            "balance.parquet": self.balance.table(),
        }


def _place_columns(place: SamplePlace) -> dict[str, int]:
    return {"offset": place.offset, "header_size": place.header_size, "size": place.size}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Loaded:
    """A planned document, read and decoded."""

    planned: PlannedDocument
    rendered: RenderedDocument
    crops: list[Crop]


def _build_sample(
    pack_id: int, planned: list[PlannedDocument], config: PackConfig, tokenizer: Tokenizer, rows: _ShardRows
) -> Sample:
    loaded, n_units = [], 0
    for document in planned:
        try:
            loaded.append(_load(document, config, tokenizer, first_unit=n_units))
        except DocumentError as error:
            rows.rejects.append(_reject(document, error))
            continue
        n_units += len(loaded[-1].rendered.unit_crops)
    laid_out = lay_out(
        [document.rendered for document in loaded],
        [document.planned.start for document in loaded],
        [document.planned.aligned_length for document in loaded],
        config=config,
        pad_id=tokenizer.entry.pad_id,
    )
    spans = [_span(document) for document in loaded]
    lengths = np.array([span.length for span in spans], np.int64)
    n_images = sum(span.n_images for span in spans)
    rows.balance.add_pack(pack_id, laid_out.index, laid_out.layouts, laid_out.boundaries)
    rows.packs.append(pack_figures(pack_id, laid_out.sequence, laid_out.index, lengths, n_images, config))
    rows.documents += [
        {**span.model_dump(), "pack_id": pack_id, "truncated_tokens": document.planned.truncated}
        for span, document in zip(spans, loaded, strict=True)
    ]
    head = SampleHead(
        pack_id=pack_id,
        documents=spans,
        cum_image_bounds=laid_out.cum_image_bounds.tolist(),
        cum_token_pooling_bounds=laid_out.cum_token_pooling_bounds.tolist(),
        image_shard_boundaries=laid_out.boundaries,
        images=[],
    )
    crops = [crop for document in loaded for crop in document.crops]
    return Sample(head=head, sequence=laid_out.sequence, layouts=laid_out.layouts, crops=crops)


def _span(loaded: _Loaded) -> DocumentSpan:
    planned = loaded.planned
    return DocumentSpan(
        doc_id=planned.doc_id,
        piece=planned.piece,
        source=planned.source,
        start=planned.start,
        length=planned.length,
        aligned_length=planned.aligned_length,
        n_images=loaded.rendered.n_images,
    )


def _reject(planned: PlannedDocument, error: DocumentError) -> dict[str, object]:
    return {
        "doc_id": planned.doc_id,
        "source": planned.source,
        "location": planned.location,
        "stage": "write",
        "code": error.code,
        "message": str(error),
    }


def _load(planned: PlannedDocument, config: PackConfig, tokenizer: Tokenizer, *, first_unit: int) -> _Loaded:
    """Reads a planned document and decodes its crops.

    Raises:
        DocumentError: it is not what was measured, or a media cannot be decoded.
    """
    read = read_planned(planned, config, tokenizer)
    timestamps = read.rendered.unit_timestamps
    crops = [
        Crop(
            doc_id=planned.doc_id,
            unit=first_unit + unit,
            width=crop.width,
            height=crop.height,
            timestamp=None if np.isnan(timestamps[unit]) else float(timestamps[unit]),
            data=crop.data,
        )
        for unit, crop in _decode(read, planned.file.folder, config)
    ]
    return _Loaded(planned=planned, rendered=read.rendered, crops=crops)


def _decode(read: ReadDocument, folder: str, config: PackConfig) -> Iterator[tuple[int, EncodedCrop]]:
    """The crops of a document's units, with the number of the unit among them. Each media is decoded once."""
    numbers = read.rendered.unit_numbers
    first = taken = 0
    for media, shape in zip(read.document.media(), read.shapes, strict=True):
        n_units = 1 if isinstance(shape, ImageCrops) else shape.n_frames
        mine = numbers[(numbers >= first) & (numbers < first + n_units)] - first
        if len(mine) and isinstance(shape, ImageCrops):
            yield from ((taken, crop) for crop in crops_of(media, folder, shape, config))
        elif len(mine) and not isinstance(shape, ImageCrops):
            frames = replace(shape, pts=shape.pts[mine], timestamps=shape.timestamps[mine])
            yield from ((taken + i, frame) for i, frame in enumerate(crops_of(media, folder, frames, config)))
        first, taken = first + n_units, taken + len(mine)

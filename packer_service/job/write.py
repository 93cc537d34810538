"""One shard from references: reads its documents again, decodes, builds the packs, writes. Second half of the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from preshard.packer_service.ingest.model import PackedFor
from preshard.packer_service.ingest.packed.known import known_pack
from preshard.packer_service.job.contents import (
    Aside,
    ReadDocument,
    aside,
    decode_documents,
    placed_crops,
    read_documents,
)
from preshard.packer_service.job.plan import PlannedDocument, PlannedShard
from preshard.packer_service.job.videos import ShardVideos
from preshard.packer_service.packs.balance import BalanceRows
from preshard.packer_service.packs.figures import UnitTotals, pack_figures
from preshard.packer_service.packs.pack import Pack, build_pack
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.shards.write import Sample, WrittenShard, write_shard
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError
from preshard.schemas.manifest import UNIT_KINDS, DocumentSpan, SampleHead, Unit
from preshard.schemas.rejects import reject_row
from preshard.schemas.tables import DOCUMENTS, PACKS, REJECTS

_UNITS = TypeAdapter(list[Unit])
"""Makes all units of a pack in half of the time that one after the other takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltShard:
    """A written shard and its rows of every table."""

    name: str
    size: int
    sha256: str
    first_pack: int
    tables: dict[str, pa.Table]


def build_shard(task: PlannedShard, config: PackConfig, target: PackedFor, folder: Folder) -> BuiltShard:
    """Writes one shard. A document that can no longer be read leaves padding, and a row of rejects."""
    rows = _ShardRows()
    with aside() as other:
        samples = _samples(task, config, target, rows, other)
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
    """A shard's rows of every table, collected as its samples are made."""

    packs: list[dict[str, int | float | str]] = field(default_factory=list)
    documents: list[dict[str, object]] = field(default_factory=list)
    rejects: list[dict[str, str]] = field(default_factory=list)
    balance: BalanceRows = field(default_factory=BalanceRows)

    def add_reject(self, planned: PlannedDocument, error: DocumentError) -> None:
        """A document fails in each of its copies alike, and is rejected once."""
        if planned.copy_number or planned.epoch:
            return
        row = reject_row(
            doc_id=planned.doc_id, source=planned.source, location=planned.location, stage="write", error=error
        )
        self.rejects.append(row)

    def add_pack(
        self,
        pack_id: int,
        pack: Pack,
        planned: list[PlannedDocument],
        spans: list[DocumentSpan],
        config: PackConfig,
    ) -> None:
        lengths = np.array([span.length for span in spans], np.int64)
        self.balance.add_pack(
            pack_id, pack.index, pack.layouts, pack.boundaries, pack.cum_image_bounds, pack.units.loads
        )
        totals = UnitTotals.of(pack.units)
        self.packs.append(pack_figures(pack_id, pack.sequence, pack.index, lengths, totals, config))
        self.documents += [
            {**span.model_dump(), "pack_id": pack_id, "truncated_tokens": document.truncated}
            for span, document in zip(spans, planned, strict=True)
        ]

    def tables(self, name: str, written: WrittenShard) -> dict[str, pa.Table]:
        packs = [
            {**row, "shard": name, "index_in_shard": i, **asdict(place)}
            for i, (row, place) in enumerate(zip(self.packs, written.places, strict=True))
        ]
        return {
            "packs.parquet": pa.Table.from_pylist(packs, schema=PACKS),
            "documents.parquet": pa.Table.from_pylist(self.documents, schema=DOCUMENTS),
            "rejects.parquet": pa.Table.from_pylist(self.rejects, schema=REJECTS),
            "balance.parquet": self.balance.table(),
        }


def _samples(
    task: PlannedShard, config: PackConfig, target: PackedFor, rows: _ShardRows, other: Aside
) -> Iterator[Sample]:
    """The packs of a shard. The documents of the next are read while one is written, where they may wait for a decoder.

    Text is read in turn: it keeps this thread's CPU busy, and two threads would only wait for each other.
    """
    following: Future[list[ReadDocument]] | None = None
    videos = ShardVideos(task.packs, config, other.ended)
    for number, planned in enumerate(task.packs):
        documents = read_documents(planned, config, videos, other.ended) if following is None else following.result()
        shows_media = any(document.n_units for document in documents)
        sample = _build_sample(task.first_pack + number, documents, config, target, rows, videos, other)
        is_last = number + 1 == len(task.packs)
        following = None
        if shows_media and not is_last:
            following = other.start(partial(read_documents, task.packs[number + 1], config, videos, other.ended))
        yield sample
        del sample  # the next one's crops are decoded now


def _build_sample(
    pack_id: int,
    documents: Sequence[ReadDocument],
    config: PackConfig,
    target: PackedFor,
    rows: _ShardRows,
    videos: ShardVideos,
    other: Aside,
) -> Sample:
    decode = partial(decode_documents, documents, config, videos, other.ended)
    decoding = other.start(decode) if any(document.n_units for document in documents) else None
    read = [not isinstance(document.rendered, DocumentError) for document in documents]
    pack = _build_pack([document for document, is_read in zip(documents, read, strict=True) if is_read], config, target)
    decoded = decode() if decoding is None else decoding.result()
    kept: list[ReadDocument] = []
    for document, own in zip(documents, decoded, strict=True):
        if isinstance(own, DocumentError):
            rows.add_reject(document.planned, own)
        else:
            kept.append(document)
    if len(kept) < sum(read):  # rare: an image or video that was measured cannot be decoded
        pack = _build_pack(kept, config, target)
    spans = [_span(document.planned, _rendered(document)) for document in kept]
    rows.add_pack(pack_id, pack, [document.planned for document in kept], spans, config)
    crops = placed_crops(documents, decoded)
    return Sample(
        head=_head(pack_id, spans, pack),
        sequence=pack.sequence,
        layouts=pack.layouts,
        crops=crops,
        encoded=pack.encoded,
    )


def _build_pack(documents: Sequence[ReadDocument], config: PackConfig, target: PackedFor) -> Pack:
    rendered = [_rendered(document) for document in documents]
    return build_pack(
        rendered,
        [document.planned.start for document in documents],
        [document.planned.aligned_length for document in documents],
        config=config,
        pad_id=target.tokenizer.pad_id,
        axes=target.axes,
        known=known_pack(rendered),
    )


def _rendered(document: ReadDocument) -> RenderedDocument:
    assert not isinstance(document.rendered, DocumentError), "asked before"
    return document.rendered


def _span(planned: PlannedDocument, rendered: RenderedDocument) -> DocumentSpan:
    totals = UnitTotals.of(rendered.units)
    return DocumentSpan(
        doc_id=planned.doc_id,
        piece=planned.piece,
        copy_number=planned.copy_number,
        epoch=planned.epoch,
        source=planned.source,
        start=planned.start,
        length=planned.length,
        aligned_length=planned.aligned_length,
        n_units=totals.n_units,
        n_images=totals.n_images,
        n_patches=totals.n_patches,
        load=totals.load,
        label_cut=rendered.label_cut,
        medium_cut=rendered.medium_cut,
    )


def _head(pack_id: int, spans: list[DocumentSpan], pack: Pack) -> SampleHead:
    """What ``KEY.json`` says, but for the crops' places and the checksums, which the writer fills in."""
    return SampleHead(
        pack_id=pack_id,
        crc32c={},
        documents=spans,
        units=_units(pack),
        cum_image_bounds=pack.cum_image_bounds.tolist(),
        cum_token_pooling_bounds=pack.cum_token_pooling_bounds.tolist(),
        image_shard_boundaries=pack.boundaries,
        images=[],
    )


def _units(pack: Pack) -> list[Unit]:
    units = pack.units
    columns = (pack.unit_documents, units.media, units.kinds, units.edges, units.grids, units.patches, units.rows,
               units.loads, units.time_steps)  # fmt: skip
    found = [
        {
            "document": document,
            "medium": medium,
            "kind": UNIT_KINDS[kind],
            "start": start,
            "end": end,
            "grid": grid,
            "patches": patches,
            "rows": rows,
            "load": load,
            "time_step": time_step,
        }
        for document, medium, kind, (start, end), grid, patches, rows, load, time_step in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
    return _UNITS.validate_python(found)

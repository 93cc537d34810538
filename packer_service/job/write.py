"""One shard from references: reads its documents again, decodes, builds the packs, writes. Second half of the job."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa

from packer_service.ingest.model import PackedFor
from packer_service.job.plan import PlannedDocument, PlannedShard
from packer_service.job.read import planned_crops, read_planned
from packer_service.packs.balance import BalanceRows
from packer_service.packs.crop import Crop
from packer_service.packs.figures import UnitTotals, pack_figures
from packer_service.packs.pack import Pack, build_pack
from packer_service.packs.rendered import RenderedDocument
from packer_service.shards.store import Folder
from packer_service.shards.write import Sample, WrittenShard, write_shard
from schemas.config import PackConfig
from schemas.errors import DocumentError
from schemas.manifest import UNIT_KINDS, DocumentSpan, SampleHead, Unit
from schemas.rejects import reject_row
from schemas.tables import DOCUMENTS, PACKS, REJECTS


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
    samples = (
        _build_sample(task.first_pack + i, planned, config, target, rows) for i, planned in enumerate(task.packs)
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


def _build_sample(
    pack_id: int, references: list[PlannedDocument], config: PackConfig, target: PackedFor, rows: _ShardRows
) -> Sample:
    planned: list[PlannedDocument] = []
    documents: list[RenderedDocument] = []
    crops: list[Crop] = []
    n_units = 0
    for reference in references:
        try:
            rendered = read_planned(reference, config)
            crops += list(planned_crops(reference, rendered, config, first_unit=n_units))
        except DocumentError as error:
            rows.add_reject(reference, error)
            continue
        planned.append(reference)
        documents.append(rendered)
        n_units += len(rendered.units)
    pack = build_pack(
        documents,
        [document.start for document in planned],
        [document.aligned_length for document in planned],
        config=config,
        pad_id=target.tokenizer.pad_id,
        axes=target.axes,
    )
    spans = [_span(reference, document) for reference, document in zip(planned, documents, strict=True)]
    rows.add_pack(pack_id, pack, planned, spans, config)
    return Sample(head=_head(pack_id, spans, pack), sequence=pack.sequence, layouts=pack.layouts, crops=crops)


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
    return [
        Unit(
            document=int(document),
            medium=int(units.media[i]),
            kind=UNIT_KINDS[units.kinds[i]],
            start=int(units.edges[i, 0]),
            end=int(units.edges[i, 1]),
            grid=units.grids[i].tolist(),
            patches=int(units.patches[i]),
            rows=int(units.rows[i]),
            load=int(units.loads[i]),
            time_step=float(units.time_steps[i]),
        )
        for i, document in enumerate(pack.unit_documents)
    ]

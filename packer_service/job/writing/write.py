"""One shard from references: reads its documents again, decodes, builds the packs, writes. Second half of the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from operator import attrgetter
from threading import Event

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.packer_service.ingest.fetch import started
from preshard.packer_service.ingest.model import PackedFor
from preshard.packer_service.ingest.packed.pack import find_known_pack
from preshard.packer_service.job.plan import PlannedShardRef
from preshard.packer_service.job.writing.contents import ShardContents
from preshard.packer_service.job.writing.read import ShardDocument
from preshard.packer_service.layout.mask import full_and_window
from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.packs.measures import MeasureRows, UnitTotals, pack_figures
from preshard.packer_service.packs.pack import BuiltPack, build_pack
from preshard.packer_service.packs.sample import EncodedSample, encode_sample, make_head
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.shards.write import WrittenShard, write_shard
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError
from preshard.schemas.header import DocumentSpan
from preshard.schemas.manifest import ShardEntry
from preshard.schemas.tables import PACKS, REJECTS, documents_schema, reject_row

BESIDE = "beside"
"""Name of threads that read and decode for the one that builds packs."""


def build_shard(
    shard: PlannedShardRef, packs: list[list[ShardDocument]], config: PackConfig, target: PackedFor, folder: Folder
) -> tuple[ShardEntry, dict[str, pa.Table]]:
    """Writes one shard; gives its entry of the manifest and its rows of every table.

    A document that can no longer be read leaves padding, and a row of rejects.

    Args:
        shard: which one it is.
        packs: the documents of each of its packs.
        config: the job's configuration.
        target: what the job packs for.
        folder: of the dataset's shards.
    """
    ended = Event()
    builder = ShardBuilder(shard.first_pack, packs, config, target, ended)
    try:
        written = write_shard(folder, shard.name, builder.samples())
    finally:
        ended.set()
    entry = ShardEntry(
        name=shard.name,
        bytes=written.size,
        sha256=written.sha256,
        packs=len(written.offsets),
        first_pack=shard.first_pack,
    )
    return entry, builder.rows.tables(shard.name, written)


@dataclass(kw_only=True)
class _ShardRows:
    """A shard's rows of every table, collected as its samples are made."""

    packs: list[dict[str, int | float | str]] = field(default_factory=list)
    documents: list[dict[str, object]] = field(default_factory=list)
    rejects: list[dict[str, str]] = field(default_factory=list)
    measures: MeasureRows = field(default_factory=MeasureRows)
    keep_columns: Sequence[tuple[str, str]] = ()

    def add_reject(self, document: ShardDocument, error: DocumentError) -> None:
        """A document fails in each of its copies alike, and is rejected once."""
        row = document.row
        if row["copy_number"] or row["epoch"]:
            return
        self.rejects.append(
            reject_row(
                doc_id=row["doc_id"],
                source=document.source,
                location=document.location,
                stage="write",
                error=error,
            )
        )

    def add_pack(
        self,
        pack_id: int,
        pack: BuiltPack,
        documents: list[ShardDocument],
        spans: list[DocumentSpan],
        encoded: EncodedSample,
        config: PackConfig,
    ) -> None:
        lengths = np.array([span.length for span in spans], np.int64)
        self.measures.add_pack(
            pack_id, pack.index, pack.layouts, pack.boundaries, pack.parts.crops, pack.parts.loads, pack.layers
        )
        full, _ = full_and_window(pack.index, pack.layers)
        totals = UnitTotals.of(pack.units)
        figures = pack_figures(pack_id, pack.sequence, full, lengths, totals, config, pack.layers)
        header = {"header_size": len(encoded.header), "head_crc32c": encoded.head_crc32c}
        self.packs.append({**figures, **header})
        self.documents += [
            {
                **span.model_dump(exclude={"columns"}),
                **(span.columns or {}),
                "pack_id": pack_id,
                "truncated_tokens": document.row["truncated"],
            }
            for span, document in zip(spans, documents, strict=True)
        ]

    def tables(self, name: str, written: WrittenShard) -> dict[str, pa.Table]:
        packs = [
            {**row, "shard": name, "index_in_shard": i, "offset": offset, "size": size}
            for i, (row, offset, size) in enumerate(zip(self.packs, written.offsets, written.sizes, strict=True))
        ]
        return {
            "packs.parquet": pa.Table.from_pylist(packs, schema=PACKS),
            "documents.parquet": pa.Table.from_pylist(self.documents, schema=documents_schema(self.keep_columns)),
            "rejects.parquet": pa.Table.from_pylist(self.rejects, schema=REJECTS),
            "measures.parquet": self.measures.table(),
        }


class ShardBuilder:
    """Makes the samples of a shard one after the other, and collects their rows of the tables."""

    def __init__(
        self, first_pack: int, packs: list[list[ShardDocument]], config: PackConfig, target: PackedFor, ended: Event
    ) -> None:
        self.rows = _ShardRows(keep_columns=config.keep_columns)
        self._first_pack, self._packs = first_pack, packs
        self._config, self._target = config, target
        self._contents = ShardContents(packs, config, ended)

    def samples(self) -> Iterator[list[bytes]]:
        """The samples as tar bytes, in parts.

        The documents of the next pack are read while one is encoded and written, where they may wait for a decoder.
        Text is read in turn: it keeps this thread's CPU busy, and two threads would only wait for each other.
        """
        following: Future[None] | None = None
        for number, documents in enumerate(self._packs):
            if following is None:
                self._contents.read(documents)
            else:
                following.result()
            shows_media = any(document.n_units for document in documents)
            pack, kept = self._build(documents)
            spans = list(map(_span, kept))
            crops = _placed_crops(kept, pack.unit_order)
            for document in documents:
                document.release()
            following = None
            if shows_media and number + 1 < len(self._packs):
                following = started(partial(self._contents.read, self._packs[number + 1]), BESIDE)
            pack_id, config = self._first_pack + number, self._config
            head = make_head(pack_id, spans, pack)
            encoded = encode_sample(head, pack.sequence, pack.layouts, crops, config.image_format, pack.encoded)
            self.rows.add_pack(pack_id, pack, kept, spans, encoded, config)
            yield [encoded.header, *encoded.crops]
            del crops, encoded  # the next one's crops are decoded now

    def _build(self, documents: Sequence[ShardDocument]) -> tuple[BuiltPack, list[ShardDocument]]:
        """The pack of those documents that can be read and decoded, and these, with their crops."""
        decoding: Future[None] | None = None
        read = [document for document in documents if document.error is None]
        if any(document.n_units for document in read):
            decoding = started(partial(self._contents.decode, documents), BESIDE)
        pack = self._pack(read)
        if decoding is not None:
            decoding.result()
        kept = [document for document in documents if document.error is None]
        for document in documents:
            if document.error is not None:
                self.rows.add_reject(document, document.error)
        if len(kept) < len(read):  # rare: an image or video that was measured cannot be decoded
            pack = self._pack(kept)
        return pack, kept

    def _pack(self, documents: Sequence[ShardDocument]) -> BuiltPack:
        rendered = [document.arrays for document in documents]
        return build_pack(
            rendered,
            [document.row["start"] for document in documents],
            [document.row["aligned_length"] for document in documents],
            config=self._config,
            pad_id=self._target.tokenizer.pad_id,
            model=self._target.model,
            known=find_known_pack(rendered),
        )


def _placed_crops(documents: Sequence[ShardDocument], unit_order: Int64[np.ndarray, "units"]) -> list[Crop]:
    """The crops of a pack's documents as they are stored, given the place of each unit in the order of tokens."""
    firsts = accumulate((document.n_units for document in documents), initial=0)
    places = np.argsort(unit_order).tolist()
    crops = [
        crop._replace(unit=places[first + crop.unit])
        for document, first in zip(documents, firsts, strict=False)
        for crop in document.crops
    ]
    return sorted(crops, key=attrgetter("unit"))


def _span(document: ShardDocument) -> DocumentSpan:
    row, rendered, totals = document.row, document.arrays, UnitTotals.of(document.arrays.units)
    return DocumentSpan(
        doc_id=row["doc_id"],
        piece=row["piece"],
        copy_number=row["copy_number"],
        epoch=row["epoch"],
        source=document.source,
        start=row["start"],
        length=row["length"],
        aligned_length=row["aligned_length"],
        n_units=totals.n_units,
        n_images=totals.n_images,
        n_patches=totals.n_patches,
        load=totals.load,
        preference=rendered.preference,
        label_cut=rendered.label_cut,
        medium_cut=rendered.medium_cut,
        columns=dict(rendered.kept) or None,
    )

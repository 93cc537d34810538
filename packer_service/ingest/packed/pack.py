"""A pack of a dataset that is a source: its header part, and each of its documents as it was rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise, starmap
from typing import Any

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.crops import StoredCrops
from preshard.packer_service.packs.pack import KnownPack
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.packs.units import Units
from preshard.packer_service.plan.cost import CostModel
from preshard.schemas import VERSION
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError, FormatError, LayoutError, SampleHeadInvalid
from preshard.schemas.files.printed import several
from preshard.schemas.header import SampleHead, Unit, read_member, stored_checksum
from preshard.schemas.layout import TokenLayout, check_partition, segment_edges
from preshard.schemas.manifest import UNIT_KINDS, ManifestHead
from preshard.schemas.members import HEAD, LAYOUTS, check_member, decode_layouts, sample_key
from preshard.schemas.sequence import CAUSAL_ONLY, NOT_POOLED, PackedSequence

_COLUMNS = [field.name for field in fields(Units)]
_NO_GROUP = np.iinfo(np.int32).max
"""Number above that of every group."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StoredPack:
    """The header part of a pack, checked, and where its crops lie.

    What documents number themselves is found at once for all of them, in a third of the time: a pack has dozens.

    Attributes:
        head: what ``KEY.json`` says.
        sequence: the arrays.
        encoded_sequence: the member that holds them.
        behind: the tar member after it, not checked yet: the layouts.
        shard: the file.
        crops_at: the byte in it from which the offsets of crops count.
        manifest: of the dataset.
        config: with which it was packed.
        where: how errors name the pack.
        units: all units of the pack, in the order of their tokens.
        document_edges: cut them into those of each document.
        crops_of: those of ``head.images`` that each unit has.
        unit_ids: the unit of each row, counted in its own document, -1 elsewhere.
        group_ids: likewise the groups, -1 for tokens that see no later one.
        n_branches: annotations of each document.
    """

    head: SampleHead
    sequence: PackedSequence
    encoded_sequence: bytes
    behind: bytes
    shard: str
    crops_at: int
    manifest: ManifestHead
    config: PackConfig
    where: str
    units: Units
    document_edges: list[int]
    crops_of: list[slice]
    unit_ids: Int32[np.ndarray, "seq"]
    group_ids: Int32[np.ndarray, "seq"]
    n_branches: list[int]

    @classmethod
    def of(cls, head: SampleHead, sequence: PackedSequence, where: str, **others: Any) -> StoredPack:
        """
        Raises:
            SampleHeadInvalid: units or documents are not in their order, or the arrays have other pooled rows.
        """
        _check_bounds(head, where)
        order = head.token_order
        stored = list(starmap(slice, pairwise([0, *head.cum_image_bounds])))
        listed, crops_of = [head.units[number] for number in order], [stored[number] for number in order]
        units, edges = _units(listed, crops_of), _document_edges(listed, len(head.documents), where)
        starts = np.array([span.start for span in head.documents], np.int64)
        lengths = np.diff(starts, append=sequence.seq_len)  # with the padding behind each
        if (lengths <= 0).any() or (np.array([span.length for span in head.documents], np.int64) > lengths).any():
            raise SampleHeadInvalid(f"{where}.{HEAD}", "documents do not lie one after the other in the pack")
        free = sequence.seq_len - int(lengths.sum())  # tokens before the first document
        groups = sequence.group_ids
        first = np.minimum.reduceat(np.where(groups >= 0, groups, _NO_GROUP), starts)
        base = np.repeat(np.append(np.int32(0), first), [free, *lengths])
        return cls(
            head=head,
            sequence=sequence,
            where=where,
            units=units,
            document_edges=edges,
            crops_of=crops_of,
            unit_ids=_unit_ids(units, edges, sequence, where),
            group_ids=np.where(groups >= 0, groups - base, CAUSAL_ONLY).astype(np.int32),
            n_branches=np.maximum.reduceat(sequence.branch_ids, starts).tolist(),
            **others,
        )

    def document(self, number: int) -> RenderedDocument:
        """One document (or a piece of one) by its number in the pack: arrays, units and crops in its own numbering.

        Raises:
            DocumentError: the pack has no such document, though a table says so.
        """
        if not 0 <= number < len(self.head.documents):
            has = several(len(self.head.documents), "document")
            raise DocumentError("bad_row", f"{self.where} has {has}, and no document {number}")
        span, sequence, model = self.head.documents[number], self.sequence, self.manifest.model
        own = slice(span.start, span.start + span.length)
        first, end = self.document_edges[number : number + 2]
        units = {name: getattr(self.units, name)[first:end] for name in _COLUMNS}
        units |= {"edges": units["edges"] - span.start, "numbers": np.arange(end - first)}
        branch_ids, n_branches = sequence.branch_ids[own], self.n_branches[number]
        return RenderedDocument(
            tokens=sequence.tokens[own],
            labels=sequence.labels[own],
            loss_weights=sequence.loss_weights[own],
            position_ids=sequence.position_ids[:, own],
            branch_ids=branch_ids,
            group_ids=self.group_ids[own],
            unit_ids=self.unit_ids[own],
            units=Units(**units),
            n_shared=int(np.searchsorted(branch_ids, 1)) if n_branches else 0,
            n_branches=n_branches,
            merge=1 if model is None else model.merge,
            media=tuple(
                StoredCrops(shard=self.shard, crops_at=self.crops_at, images=self.head.images[own_crops])
                for own_crops in self.crops_of[first:end]
            ),
            preference=span.preference,
            label_cut=span.label_cut,
            medium_cut=span.medium_cut,
            origin=self,
            columns={name: values[own] for name, values in sequence.columns.items()},
            kept=span.columns or {},
        )

    def layouts(self) -> tuple[Mapping[str, TokenLayout], bytes]:
        """The layouts and the member that holds them. Damaged ones are no loss: they are searched for again."""
        config, where = self.config, f"{self.where}.{LAYOUTS}"
        try:
            encoded, _ = read_member(self.behind, 0, f"{sample_key(self.head.pack_id)}.{LAYOUTS}", where)
            check_member(encoded, stored_checksum(self.head, LAYOUTS, self.where), where)
            found = decode_layouts(encoded, config.seq_len, config.block_size, where)
            for layout in found.values():
                check_partition(layout, config.seq_len)
        except (FormatError, LayoutError):
            return {}, b""
        return found, encoded


def _check_bounds(head: SampleHead, where: str) -> None:
    """Raises SampleHeadInvalid: the crops of units are not all that are listed, one unit's after the other's."""
    bounds = [0, *head.cum_image_bounds]
    if len(bounds) != len(head.units) + 1 or bounds[-1] != len(head.images) or bounds != sorted(bounds):
        what = f"cum_image_bounds {head.cum_image_bounds!r:.200} are not those of {len(head.units)} units"
        raise SampleHeadInvalid(f"{where}.{HEAD}", f"{what} and {len(head.images)} images")


def _units(stored: Sequence[Unit], crops_of: Sequence[slice]) -> Units:
    return Units(
        kinds=np.array([UNIT_KINDS.index(unit.kind) for unit in stored], np.int64),
        edges=np.array([(unit.start, unit.end) for unit in stored], np.int64).reshape(-1, 2),
        grids=np.array([unit.grid for unit in stored], np.int64).reshape(-1, 3),
        patches=np.array([unit.patches for unit in stored], np.int64),
        rows=np.array([unit.rows for unit in stored], np.int64),
        crops=np.array([own.stop - own.start for own in crops_of], np.int64),
        loads=np.array([unit.load for unit in stored], np.int64),
        media=np.array([unit.medium for unit in stored], np.int64),
        time_steps=np.array([unit.time_step for unit in stored], np.float64),
        numbers=np.arange(len(stored)),
    )


def _document_edges(stored: Sequence[Unit], n_documents: int, where: str) -> list[int]:
    documents = np.array([unit.document for unit in stored], np.int64)
    if (np.diff(documents) < 0).any() or (documents >= n_documents).any():
        raise SampleHeadInvalid(f"{where}.{HEAD}", "units are not in the order of the documents that there are")
    edges: list[int] = np.searchsorted(documents, np.arange(n_documents + 1)).tolist()
    return edges


def _unit_ids(
    units: Units, document_edges: Sequence[int], sequence: PackedSequence, where: str
) -> Int32[np.ndarray, "seq"]:
    edges, pooled = np.array(document_edges), sequence.pool_ids != NOT_POOLED
    in_document = np.arange(edges[-1]) - np.repeat(edges[:-1], np.diff(edges))
    listed, n_pooled = sum(units.rows.tolist()), int(np.count_nonzero(pooled))
    if listed != n_pooled:
        what = f"units have {listed} pooled rows, and the pack {n_pooled} tokens of such"
        raise SampleHeadInvalid(f"{where}.{HEAD}", what)
    rows = np.repeat(in_document, units.rows)
    unit_ids = np.full(sequence.seq_len, NOT_POOLED, np.int32)
    unit_ids[pooled] = rows
    return unit_ids


def weigh(document: RenderedDocument, config: PackConfig) -> RenderedDocument:
    """The document with the encoder's work as this configuration counts it.

    Of squares it follows from ``cost``, which may change; a model's own encoder is part of the model.
    """
    if config.model is not None or not len(document.units):
        return document
    loads = document.units.crops * CostModel.of(config).vision_work_per_crop
    if np.array_equal(loads, document.units.loads):
        return document
    return replace(document, units=replace(document.units, loads=loads))


def find_known_pack(documents: Sequence[RenderedDocument]) -> KnownPack | None:
    """The pack that all of these documents, and no others, were taken out of; None if there is none.

    Nor if another version of preshard wrote it, whose arrays may be compressed, or its layouts searched for, otherwise.
    """
    stored = documents[0].origin if documents else None
    if not isinstance(stored, StoredPack) or len(stored.head.documents) != len(documents):
        return None
    if any(document.origin is not stored for document in documents):
        return None
    if stored.manifest.preshard_version != VERSION:
        return None
    spans, config = stored.head.documents, stored.config
    starts, lengths = (np.array([getattr(span, name) for span in spans]) for name in ("start", "aligned_length"))
    return KnownPack(
        sequence=stored.sequence,
        encoded_sequence=stored.encoded_sequence,
        segment_edges=segment_edges(starts, lengths, config.seq_len),
        block_size=config.block_size,
        layers=None if stored.manifest.model is None else stored.manifest.model.masks,
        read_layouts=stored.layouts,
    )

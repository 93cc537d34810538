"""One pack in memory: rendered documents at their places, and everything that a sample's header part says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int32, Int64

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.solve import solve_layouts
from preshard.packer_service.layout.unit_order import balanced_order
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.packs.units import Units
from preshard.packer_service.plan.cost import CostModel
from preshard.schemas.boundaries import image_edges
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import PlanError
from preshard.schemas.layout import RankImages, TokenLayout, UnitParts, boundaries_from_edges, segment_edges, unit_parts
from preshard.schemas.manifest import LayerMasks, ModelEntry, encoder_of
from preshard.schemas.members import LAYOUTS, SEQUENCE
from preshard.schemas.sequence import (
    CAUSAL_ONLY,
    IGNORE_INDEX,
    NOT_POOLED,
    PADDING_DOC,
    SEQUENCE_DTYPES,
    PackedSequence,
    TokenColumn,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownPack:
    """Everything that was written of a pack.

    Attributes:
        sequence: its arrays.
        encoded_sequence: these as they were written.
        segment_edges: see :func:`preshard.schemas.layout.segment_edges`.
        block_size: of its layouts.
        layers: of the model that it was packed for, as for :func:`build_pack`.
        read_layouts: gives its layouts by name, and these as they were written; nothing where they are damaged.
    """

    sequence: PackedSequence
    encoded_sequence: bytes
    segment_edges: Int64[np.ndarray, "segments_plus_1"]
    block_size: int
    layers: LayerMasks | None
    read_layouts: Callable[[], tuple[Mapping[str, TokenLayout], bytes]]

    def has(self, sequence: PackedSequence) -> bool:
        """Whether a pack has these very arrays."""
        own, others = self.sequence.columns, sequence.columns
        return (
            all(np.array_equal(getattr(self.sequence, name), getattr(sequence, name)) for name in SEQUENCE_DTYPES)
            and own.keys() == others.keys()
            and all(np.array_equal(own[name], others[name]) for name in own)
        )

    def layouts(
        self, segment_edges: Int64[np.ndarray, "segments_plus_1"], block_size: int
    ) -> tuple[Mapping[str, TokenLayout], bytes]:
        """The layouts of a pack with these arrays, as far as they are known, and all of them as they were written.

        They follow from the mask, the segments and the size of a block, whatever other layouts are asked for.
        """
        if block_size != self.block_size or not np.array_equal(segment_edges, self.segment_edges):
            return {}, b""
        return self.read_layouts()


def encoded_members(
    known: KnownPack, layouts: Mapping[str, TokenLayout], encoded: bytes, asked: list[TokenLayout]
) -> dict[str, bytes]:
    """The members of a pack with known arrays that are as they were written, by their extensions."""
    members = {SEQUENCE: known.encoded_sequence}
    if encoded and [layout.name for layout in asked] == list(layouts):
        members[LAYOUTS] = encoded
    return members


COPIED = ("tokens", "labels", "loss_weights", "branch_ids")
"""Arrays that a pack takes from its documents as they are."""


def build_sequence(
    documents: Sequence[RenderedDocument],
    starts: Sequence[int],
    *,
    seq_len: int,
    pad_id: int,
    axes: int = 1,
    columns: Sequence[TokenColumn] = (),
) -> PackedSequence:
    """Lays documents at their starts into a sequence; whatever they leave free is padding.

    Documents, units, groups and pooled rows are numbered throughout the pack in the order given.

    Args:
        documents: rendered documents.
        starts: position of each one's first token, ascending, without overlap.
        seq_len: tokens of the pack.
        pad_id: token of the padding.
        axes: axes of the documents' positions.
        columns: the columns of tokens, which every document has.

    Raises:
        PlanError: documents overlap, or reach past the pack's end.
    """
    arrays = _padding(seq_len, pad_id, axes)
    values = {column.name: column.zeros(seq_len) for column in columns}
    free_from = next_group = next_row = 0
    for number, (document, start) in enumerate(zip(documents, starts, strict=True)):
        end = start + len(document)
        if start < free_from or end > seq_len:
            raise PlanError(f"document {number} lies at {start}:{end}; free is {free_from}:{seq_len}")
        free_from = end
        for name in COPIED:
            arrays[name][start:end] = getattr(document, name)
        for name, array in values.items():
            array[start:end] = document.columns[name]
        arrays["position_ids"][:, start:end] = document.position_ids
        arrays["doc_ids"][start:end] = number
        groups = document.group_ids
        n_groups = int(groups.max(initial=-1)) + 1
        if n_groups:
            arrays["group_ids"][start:end] = np.where(groups >= 0, groups + next_group, CAUSAL_ONLY)
            next_group += n_groups
        if len(document.units):
            pooled = document.unit_ids >= 0
            arrays["pool_ids"][start:end][pooled] = next_row + np.arange(pooled.sum())
            next_row += int(pooled.sum())
    return PackedSequence(**arrays, columns=values)


def _padding(seq_len: int, pad_id: int, axes: int) -> dict[str, np.ndarray]:
    """The arrays of a pack without documents."""
    fill = {
        "tokens": pad_id,
        "labels": IGNORE_INDEX,
        "loss_weights": 0,
        "position_ids": 0,
        "doc_ids": PADDING_DOC,
        "branch_ids": 0,
        "group_ids": CAUSAL_ONLY,
        "pool_ids": NOT_POOLED,
    }
    shapes = dict.fromkeys(SEQUENCE_DTYPES, (seq_len,)) | {"position_ids": (axes, seq_len)}
    return {name: np.full(shapes[name], fill[name], dtype) for name, dtype in SEQUENCE_DTYPES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltPack:
    """A pack's arrays, the index of its mask, its layouts, its units and its image boundaries.

    ``layers`` are the model's, where some have a window that is shorter than the pack.
    ``units`` are in the order in which they are stored: at place i lies the unit ``unit_order[i]`` in the order of
    tokens. ``unit_documents`` is the number of each one's document; ``units.edges`` are natural positions in the pack.
    ``parts`` are what ranks are dealt of the units.
    ``encoded`` has the members of a sample, by their extensions, that are known as bytes already.
    """

    sequence: PackedSequence
    index: MaskIndex
    layouts: list[TokenLayout]
    units: Units
    unit_order: Int64[np.ndarray, "units"]
    unit_documents: Int64[np.ndarray, "units"]
    parts: UnitParts
    cum_image_bounds: Int64[np.ndarray, "units"]
    cum_token_pooling_bounds: Int64[np.ndarray, "units"]
    boundaries: dict[str, dict[str, RankImages]]
    layers: LayerMasks | None
    encoded: Mapping[str, bytes]


def build_pack(
    documents: Sequence[RenderedDocument],
    starts: Sequence[int],
    aligned_lengths: Sequence[int],
    *,
    config: PackConfig,
    pad_id: int,
    model: ModelEntry | None,
    known: KnownPack | None = None,
) -> BuiltPack:
    """Builds a pack's arrays, solves its layouts from the real mask, and the order of its units and their boundaries.

    Args:
        documents: rendered documents, in the order of their starts.
        starts: position of each one's first token.
        aligned_lengths: tokens that each takes up, including the padding at its end.
        config: the job's configuration.
        pad_id: token of the padding.
        model: for which the job packs.
        known: a pack that may turn out to be this one. What was written of it is then taken as it is.

    Raises:
        PlanError: documents overlap, or reach past the pack's end.
    """
    axes, layers = (1, None) if model is None else (model.axes, model.masks)
    shares_crops = model is None or model.shares_crops
    sequence = build_sequence(
        documents, starts, seq_len=config.seq_len, pad_id=pad_id, axes=axes, columns=config.columns_of_tokens
    )
    placed = [(document.units, start) for document, start in zip(documents, starts, strict=True) if len(document.units)]
    units = Units.joined([own.moved(start) for own, start in placed])
    order = np.arange(len(units)) if model is None or shares_crops else _stored_order(units, config, model)
    sequence = replace(sequence, pool_ids=_stored_rows(sequence.pool_ids, units.rows, order))
    units = units.reordered(order)
    index = MaskIndex.of(sequence.mask)
    edges = segment_edges(np.array(starts, np.int64), np.array(aligned_lengths, np.int64), config.seq_len)
    is_known = known is not None and known.layers == layers and known.has(sequence)
    old, written = known.layouts(edges, config.block_size) if known is not None and is_known else ({}, b"")
    layouts = _layouts(index, edges, config, old, layers)
    counts = [len(document.units) for document in documents]
    images, pooled = np.cumsum(units.crops), np.cumsum(units.rows)
    parts = unit_parts(images, pooled, units.loads, shares_crops=shares_crops)
    return BuiltPack(
        sequence=sequence,
        index=index,
        layouts=layouts,
        units=units,
        unit_order=order,
        unit_documents=np.repeat(np.arange(len(documents)), counts)[order],
        parts=parts,
        cum_image_bounds=images,
        cum_token_pooling_bounds=pooled,
        boundaries=image_boundaries(parts.loads, parts.crops, parts.rows, config.cp_sizes),
        layers=layers,
        encoded=encoded_members(known, old, written, layouts) if known is not None and is_known else {},
    )


def _stored_order(units: Units, config: PackConfig, model: ModelEntry) -> Int64[np.ndarray, "units"]:
    """Order of units which ranks do not share: crops that are shared are all alike, so their order changes nothing."""
    encoder = encoder_of(model.settings)
    width = config.cost.hidden_size if encoder is None else encoder.row_outputs
    price = CostModel.of(config).vision_work_per_sent_number * width * int(units.rows.sum())
    return balanced_order(units.loads, config.cp_sizes, price=int(price))


def _stored_rows(
    pool_ids: Int32[np.ndarray, "seq"], rows: Int64[np.ndarray, "units"], order: Int64[np.ndarray, "units"]
) -> Int32[np.ndarray, "seq"]:
    """Rows numbered in stored order, given those in the order of tokens, and the number of each unit there."""
    firsts = np.empty_like(rows)
    firsts[order] = np.cumsum(rows[order]) - rows[order]
    in_unit = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    found = np.append(np.repeat(firsts, rows) + in_unit, NOT_POOLED).astype(np.int32)
    return found[pool_ids]


def configured_layouts(
    index: MaskIndex, starts: Int64[np.ndarray, "docs"], aligned_lengths: Int64[np.ndarray, "docs"], config: PackConfig
) -> list[TokenLayout]:
    """Every layout that a configuration asks for, for a pack whose documents lie at these starts."""
    return _layouts(index, segment_edges(starts, aligned_lengths, config.seq_len), config, {}, None)


def _layouts(
    index: MaskIndex,
    edges: Int64[np.ndarray, "segments_plus_1"],
    config: PackConfig,
    known: Mapping[str, TokenLayout],
    layers: LayerMasks | None,
) -> list[TokenLayout]:
    return solve_layouts(
        index,
        segment_edges=edges,
        schemes=config.layouts,
        ring_degrees=config.ring_degrees,
        block_size=config.block_size,
        known=known,
        layers=layers,
    )


def image_boundaries(
    loads: Int64[np.ndarray, "parts"],
    cum_image_bounds: Int64[np.ndarray, "parts"],
    cum_token_pooling_bounds: Int64[np.ndarray, "parts"],
    cp_sizes: Sequence[int],
) -> dict[str, dict[str, RankImages]]:
    """Optimal image boundaries of a pack for each CP size.

    Args:
        loads: the encoder's work for each unit, or each part of one, an integer.
        cum_image_bounds: crops up to and including each.
        cum_token_pooling_bounds: pooled rows up to and including each.
        cp_sizes: numbers of ranks.
    """
    return {
        str(size): boundaries_from_edges(image_edges(loads, size), cum_image_bounds, cum_token_pooling_bounds)
        for size in sorted(cp_sizes)
    }

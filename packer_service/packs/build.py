"""Rendered documents at their places to everything that a pack's header part says. Pure: no file, no pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from packer_service.layout.area import attention_area
from packer_service.layout.mask import MaskIndex
from packer_service.layout.schemes.zigzag import segment_edges
from packer_service.layout.solve import solve_layouts
from packer_service.layout.tiles import whole_tiles
from packer_service.packs.assemble import assemble, cumulative_bounds
from packer_service.packs.balance import image_boundaries, pack_tiles
from packer_service.packs.rendered import RenderedDocument
from packer_service.plan.cost import CostModel, pack_cost
from schemas.codec import sample_key
from schemas.config import PackConfig
from schemas.layout import RankImages, TokenLayout
from schemas.sequence import PackedSequence


@dataclass(frozen=True, kw_only=True, slots=True)
class LaidOutPack:
    """A pack's arrays, its layouts and its image boundaries."""

    sequence: PackedSequence
    index: MaskIndex
    layouts: list[TokenLayout]
    cum_image_bounds: Int64[np.ndarray, "units"]
    cum_token_pooling_bounds: Int64[np.ndarray, "units"]
    boundaries: dict[str, dict[str, RankImages]]


def lay_out(
    documents: Sequence[RenderedDocument],
    starts: Sequence[int],
    aligned_lengths: Sequence[int],
    *,
    config: PackConfig,
    pad_id: int,
) -> LaidOutPack:
    """Assembles a pack and solves its layouts and boundaries from the real mask.

    Args:
        documents: rendered documents, in the order of their starts.
        starts: position of each one's first token.
        aligned_lengths: tokens that each takes up, its padding at the end included.
        config: the job's configuration.
        pad_id: token of the padding.
    """
    sequence = assemble(documents, starts, seq_len=config.seq_len, pad_id=pad_id, bidirectional=config.bidirectional)
    index = MaskIndex.of(sequence.mask)
    layouts = configured_layouts(index, np.array(starts, np.int64), np.array(aligned_lengths, np.int64), config)
    images, pooled = cumulative_bounds(documents, config.vision.pooled_per_crop)
    return LaidOutPack(
        sequence=sequence,
        index=index,
        layouts=layouts,
        cum_image_bounds=images,
        cum_token_pooling_bounds=pooled,
        boundaries=image_boundaries(images, pooled, config.cp_sizes),
    )


def configured_layouts(
    index: MaskIndex, starts: Int64[np.ndarray, "docs"], aligned_lengths: Int64[np.ndarray, "docs"], config: PackConfig
) -> list[TokenLayout]:
    """Every layout that a configuration asks for, of a pack whose documents lie at their starts."""
    return solve_layouts(
        index,
        segment_edges=segment_edges(starts, aligned_lengths, config.seq_len),
        schemes=config.layouts,
        ring_degrees=config.ring_degrees,
        block_size=config.block_size,
    )


def pack_figures(
    pack_id: int,
    sequence: PackedSequence,
    index: MaskIndex,
    lengths: Int64[np.ndarray, "docs"],
    n_images: int,
    config: PackConfig,
) -> dict[str, int | float | str]:
    """The columns of ``packs.parquet`` that follow from a pack's arrays, its documents' lengths and its crops."""
    area = attention_area(index)
    cost = pack_cost(
        CostModel.of(config),
        seq_len=config.seq_len,
        tiles=np.array([pack_tiles(lengths, area)]),
        crops=np.array([n_images]),
    )
    return {
        "pack_id": pack_id,
        "key": sample_key(pack_id),
        "n_tokens": int((sequence.doc_ids >= 0).sum()),
        "n_padding": int((sequence.doc_ids < 0).sum()),
        "n_documents": len(lengths),
        "n_images": n_images,
        "n_pooled_tokens": int((sequence.pool_ids >= 0).sum()),
        "attention_area": area,
        "attention_tiles": whole_tiles(index),
        "cost": float(cost[0]),
    }

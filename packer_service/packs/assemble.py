"""A pack's rendered documents to its token arrays. Pure: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from packer_service.packs.rendered import RenderedDocument, group_ids
from schemas.errors import PlanError
from schemas.sequence import CAUSAL_ONLY, IGNORE_INDEX, NOT_POOLED, PADDING_DOC, PackedSequence


def assemble(
    documents: Sequence[RenderedDocument],
    starts: Sequence[int],
    *,
    seq_len: int,
    pad_id: int,
    bidirectional: str,
) -> PackedSequence:
    """Lays documents at their starts into a sequence; whatever they leave free is padding.

    Documents, units, groups and pooled rows are numbered through the pack in the order given.

    Args:
        documents: rendered documents.
        starts: position of each one's first token, ascending, without overlap.
        seq_len: tokens of the pack.
        pad_id: token of the padding.
        bidirectional: which image tokens see each other, see :func:`~packer_service.ingest.render.group_ids`.

    Raises:
        PlanError: documents overlap, or reach past the pack's end.
    """
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
    arrays = {
        name: np.full(seq_len, value, np.float32 if name == "loss_weights" else np.int32)
        for name, value in fill.items()
    }
    free_from = next_group = next_row = 0
    for number, (document, start) in enumerate(zip(documents, starts, strict=True)):
        end = start + len(document)
        if start < free_from or end > seq_len:
            raise PlanError(f"document {number} lies at {start}:{end}; free is {free_from}:{seq_len}")
        free_from = end
        for name in ("tokens", "labels", "loss_weights", "position_ids", "branch_ids"):
            arrays[name][start:end] = getattr(document, name)
        arrays["doc_ids"][start:end] = number
        groups = group_ids(document.unit_ids, bidirectional)
        arrays["group_ids"][start:end] = np.where(groups >= 0, groups + next_group, CAUSAL_ONLY)
        next_group += int(groups.max(initial=-1)) + 1
        pooled = document.unit_ids >= 0
        arrays["pool_ids"][start:end][pooled] = next_row + np.arange(pooled.sum())
        next_row += int(pooled.sum())
    return PackedSequence(**arrays)


def cumulative_bounds(
    documents: Sequence[RenderedDocument], pooled_per_crop: int
) -> tuple[Int64[np.ndarray, "units"], Int64[np.ndarray, "units"]]:
    """Crops, and pooled rows, up to and including each unit of a pack."""
    crops = np.concatenate([np.zeros(0, np.int64), *(document.unit_crops for document in documents)])
    images = np.cumsum(crops)
    return images, images * pooled_per_crop

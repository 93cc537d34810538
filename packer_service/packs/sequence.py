"""The token arrays of a pack, from its rendered documents. Pure: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.errors import PlanError
from preshard.schemas.sequence import (
    CAUSAL_ONLY,
    IGNORE_INDEX,
    NOT_POOLED,
    PADDING_DOC,
    SEQUENCE_DTYPES,
    PackedSequence,
)

COPIED = ("tokens", "labels", "loss_weights", "branch_ids")
"""Arrays that a pack takes from its documents as they are."""


def build_sequence(
    documents: Sequence[RenderedDocument],
    starts: Sequence[int],
    *,
    seq_len: int,
    pad_id: int,
    axes: int = 1,
) -> PackedSequence:
    """Lays documents at their starts into a sequence; whatever they leave free is padding.

    Documents, units, groups and pooled rows are numbered throughout the pack in the order given.

    Args:
        documents: rendered documents.
        starts: position of each one's first token, ascending, without overlap.
        seq_len: tokens of the pack.
        pad_id: token of the padding.
        axes: axes of the documents' positions.

    Raises:
        PlanError: documents overlap, or reach past the pack's end.
    """
    arrays = _padding(seq_len, pad_id, axes)
    free_from = next_group = next_row = 0
    for number, (document, start) in enumerate(zip(documents, starts, strict=True)):
        end = start + len(document)
        if start < free_from or end > seq_len:
            raise PlanError(f"document {number} lies at {start}:{end}; free is {free_from}:{seq_len}")
        free_from = end
        for name in COPIED:
            arrays[name][start:end] = getattr(document, name)
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
    return PackedSequence(**arrays)


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

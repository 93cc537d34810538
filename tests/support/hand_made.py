"""Packs of random tokens that no job has made, for models of text of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.schemas.manifest import ModelEntry
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.schemes import zigzag_runs
from preshard.schemas.sequence import CAUSAL_ONLY, IGNORE_INDEX
from preshard.trainer.data.batch import RankBatch


def pack_of(lengths: Sequence[int], vocabulary: int, *, ring_degree: int = 1, cp_rank: int = 0) -> RankBatch:
    """A rank's part, in the layout zigzag, of a pack of random documents, every token of which but the last is learnt.

    Args:
        lengths: tokens of each document; twice ``ring_degree`` divides each.
        vocabulary: ids are below.
        ring_degree: ranks of the pack.
        cp_rank: one of them.
    """
    edges = np.array([0, *accumulate(lengths)])
    doc_ids = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    tokens = torch.randint(10, vocabulary, (len(doc_ids),), generator=torch.Generator().manual_seed(1))
    labels = tokens.roll(-1)
    labels[torch.from_numpy(edges[1:] - 1)] = IGNORE_INDEX
    layout = TokenLayout(
        scheme="zigzag",
        ring_degree=ring_degree,
        block_size=len(tokens),
        runs=zigzag_runs(edges, ring_degree),
        needs=np.ones((ring_degree, 1), np.bool_),
    )
    mine = torch.from_numpy(slice_positions(layout.runs, cp_rank))
    positions = torch.cat([torch.arange(length) for length in lengths])
    none, whole = torch.zeros(ring_degree + 1, dtype=torch.int64), torch.from_numpy(doc_ids)
    learnt = labels != IGNORE_INDEX
    empty: dict[str, Any] = {
        **{"pixels": torch.empty(0, dtype=torch.uint8), "picture_sizes": torch.empty(0, 2, dtype=torch.int64)},
        **{"crop_side": None, "documents": (), "units": (), "unit_edges": none[:1], "model": None, "not_causal": ""},
        **{"image_edges": none, "pool_edges": none, "pool_positions": none[:0], "bytes_read": 0, "state": {}},
    }
    return RankBatch(
        **{"pack_id": 0, "dataset": 0, "key": "", "step": 0, "cp_rank": cp_rank, "layout": layout, **empty},
        tokens=tokens[mine],
        labels=labels[mine],
        loss_weights=learnt[mine].float(),
        loss_tokens=torch.nonzero(learnt[mine])[:, 0],
        position_ids=positions[mine][None],
        pool_ids=torch.full_like(mine, -1),
        positions=mine,
        doc_ids=whole,
        branch_ids=torch.zeros_like(whole),
        group_ids=torch.full_like(whole, CAUSAL_ONLY),
        total_loss_weight=float(learnt.sum()),
        sequence_edges=torch.from_numpy(edges).int(),
        longest_sequence=max(lengths),
        padded_seq_edges=torch.from_numpy(edges).int(),
    )


def packed_for(model: Any, pack: RankBatch) -> RankBatch:
    """A pack of text as one is read that was packed for a model."""
    config = model.config
    if config.model_type not in FAMILIES:
        return pack
    rotary = getattr(config.get_text_config(), "rope_parameters", None) or {}
    axes = 3 if "mrope_section" in rotary else 1
    entry = ModelEntry.model_construct(model_type=config.model_type, axes=axes, row_ids=[], group_ids=[], settings={})
    return replace(pack, model=entry, position_ids=pack.position_ids.expand(axes, -1))

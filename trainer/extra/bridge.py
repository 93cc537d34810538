"""Batches of Megatron Bridge's training steps, each of a whole pack."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from preshard.schemas.errors import ReaderError
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.integrations.varlen import to_megatron

PICTURES = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Kinds of models whose class in Bridge takes positions of three axes, instead of counting its own."""


class VisualInputs(SimpleNamespace):
    """Vision inputs as Bridge's ``GenericVisualInputs`` has them, without an import of Bridge, which needs a GPU."""

    def as_model_kwargs(self) -> dict[str, Tensor]:
        """Gives those that are there, by the names of the model's arguments."""
        return {name: value for name, value in vars(self).items() if value is not None}

    normalized_for_model = as_model_kwargs


def bridge_batch(batch: RankBatch) -> dict[str, Any]:
    """See :func:`preshard.data.to_bridge`."""
    if len(batch) != batch.seq_len:
        raise ReaderError(
            f"pack {batch.pack_id}: this rank has {len(batch)} of its {batch.seq_len} tokens, and Bridge cuts whole "
            "packs itself; read without ring_degree and ulysses_degree, or use to_megatron in a step of your own"
        )
    kind = batch.model.model_type if batch.model is not None else None
    if kind in PICTURES:
        return _of_pictures(batch)
    if batch.units:
        raise ReaderError(
            f"pack {batch.pack_id} has images for {kind or 'no model'}, and of Bridge's models with images only "
            f"{', '.join(PICTURES)} take packs; use to_megatron in a step of your own"
        )
    return _of_text(batch)


def _of_text(batch: RankBatch) -> dict[str, Tensor]:
    found = to_megatron(batch)
    edges = {"cu_seqlens": found.pop("cu_seqlens_padded"), "cu_seqlens_unpadded": found.pop("cu_seqlens")}
    for name, values in edges.items():
        found[name] = torch.nn.functional.pad(values, (0, 1), value=-1)[None]
        found[f"{name}_argmin"] = torch.tensor([[len(values)]], device=values.device)
    ones = torch.ones(1, dtype=torch.int64, device=batch.tokens.device)
    return {**found, "max_seqlen": found["max_seqlen"][None], "attention_mask": ones}


def _of_pictures(batch: RankBatch) -> dict[str, Any]:
    lengths, starts = batch.document_lengths, batch.cu_seqlens_padded[:-1]
    held = lengths > 0  # Bridge refuses rooms without a document: what is left of the pack joins the last one's
    if not bool(held.any()):
        held = torch.arange(len(lengths), device=lengths.device) == 0
        lengths = torch.diff(batch.cu_seqlens_padded)
    real = torch.nn.functional.pad(lengths[held].cumsum(0), (1, 0)).int()
    rooms = torch.cat([starts[held], starts.new_tensor([batch.seq_len])])
    longest = torch.diff(rooms).max().cpu()
    found: dict[str, Any] = {"cu_seqlens_q": real, "cu_seqlens_kv": real}
    if not torch.equal(real, rooms):
        found |= {"cu_seqlens_q_padded": rooms, "cu_seqlens_kv_padded": rooms}
    return found | {
        "input_ids": batch.tokens[None],
        "labels": batch.labels[None],
        "loss_mask": batch.loss_weights[None],
        "position_ids": batch.position_ids[:, None],
        "attention_mask": None,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
        "total_tokens": batch.seq_len,
        "visual_inputs": VisualInputs(**batch.model_inputs() if batch.units else {}),
    }

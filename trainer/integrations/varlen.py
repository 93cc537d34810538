"""Packs under the names that others have for packed sequences: ``transformers``, Megatron, Megatron Bridge."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from preshard.schemas.errors import ReaderError
from preshard.schemas.sequence import IGNORE_INDEX
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.extras import load_extra


def to_varlen(
    batch: RankBatch, *, model: Any = None, with_labels: bool = True, with_columns: bool = False
) -> dict[str, Any]:
    """Arguments of an unmodified ``transformers`` model: ``model(**to_varlen(batch, model=model))``.

    Each document is a sequence of its own, and so is the padding between and after documents, which has no label.
    FlashAttention takes the edges; other implementations find the sequences by ``position_ids``, unless the model keeps
    a cache of keys. Only models that would not look for them get a mask, of the form that their attention takes.

    Args:
        batch: a whole pack on one rank.
        model: that takes them. It may be left out if the packs were made for a kind of model that sees sequences by
            itself.
        with_labels: whether the model computes the loss, which weighs every label alike.
        with_columns: whether to add the columns of tokens, for a loss of your own: take them out before the model.

    Returns:
        ``input_ids`` [1, seq]. ``position_ids`` [1, seq], or for a model with three axes [4, 1, seq], the position in
        the text first. ``cu_seq_lens_q``, ``cu_seq_lens_k`` int32 [sequences + 1], ``max_length_q``, ``max_length_k``
        in tokens, ``seq_idx`` int32 [1, seq]: the number of each token's sequence. With labels, ``shift_labels``
        [1, seq], the next token where there is loss, and ``labels``, the same one place later, which models shift
        themselves. ``use_cache``: false. With columns, ``columns.NAME`` [1, seq] or [1, seq, k], aligned with
        ``shift_labels``. And the vision inputs in the model's own names.

    Raises:
        ReaderError: sequences cannot express the mask, the batch is a part of a pack, labels differ in weight, or the
            model would mix documents.
    """
    edges, longest = batch.cu_seqlens, batch.max_seqlen
    if len(batch.tokens) != batch.seq_len:
        raise ReaderError(
            f"pack {batch.pack_id} has {batch.seq_len} tokens, of which this rank has {len(batch.tokens)}: to_varlen "
            "needs whole packs; read them without ring_degree and ulysses_degree"
        )
    lengths = torch.diff(edges)
    numbers = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32, device=edges.device), lengths)
    in_text = torch.arange(batch.seq_len, device=edges.device) - edges[:-1].long().repeat_interleave(lengths)
    axes = batch.position_ids
    found: dict[str, Any] = {
        "input_ids": batch.tokens[None],
        "position_ids": in_text[None] if len(axes) == 1 else torch.cat([in_text[None], axes])[:, None],
        "cu_seq_lens_q": edges,
        "cu_seq_lens_k": edges,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": numbers[None],
        "use_cache": False,
    }
    found |= load_extra("own_masks").masks_for(batch, model, found["position_ids"])
    if with_labels:
        found |= _labels(batch)
    if with_columns:
        found |= {f"columns.{name}": values[None] for name, values in batch.columns.items()}
    return found | _vision_inputs(batch)


def _vision_inputs(batch: RankBatch) -> dict[str, Any]:
    """The inputs of images and videos, in the model's own names.

    Raises:
        ReaderError: the model finds both by the same token, which ``transformers`` does for one of them at a time.
    """
    found = batch.model_inputs() if batch.units else {}
    both = {"pixel_values", "pixel_values_videos"} <= found.keys()
    if both and batch.model is not None and len(batch.model.row_ids) == 1:
        raise ReaderError(
            f"pack {batch.pack_id} has images and videos, whose features a {batch.model.model_type} model finds by the "
            "same token, for one of the two in a call: take preshard.models.PackedModel, or pack them apart"
        )
    return found


def unequal_weights(batch: RankBatch) -> str:
    """The labels' loss weights in words, unless all are 1."""
    weights = batch.loss_weights[batch.labels != IGNORE_INDEX]
    if not bool((weights != 1).any()):
        return ""
    return f"labels of pack {batch.pack_id} have weights from {weights.min():g} to {weights.max():g}"


def _labels(batch: RankBatch) -> dict[str, Int64[Tensor, "1 seq"]]:
    if unequal := unequal_weights(batch):
        raise ReaderError(
            f"{unequal}, and models weigh all alike: give with_labels=False, and weigh the logits' losses by "
            "batch.loss_weights"
        )
    before = torch.cat([batch.labels.new_full((1,), IGNORE_INDEX), batch.labels[:-1]])
    return {"labels": before[None], "shift_labels": batch.labels[None]}


def to_megatron(batch: RankBatch) -> dict[str, Any]:
    """A pack, or a rank's part of one, as Megatron-Core takes packed sequences (``qkv_format="thd"``).

    A part is what ``megatron.core.utils.get_thd_batch_on_this_cp_rank`` makes of the whole pack: this rank's tokens,
    and the edges of all.

    Returns:
        ``tokens``, ``labels``, ``loss_mask`` [1, local]. ``position_ids`` [1, local], or for a model with three axes
        [3, 1, local]. Labels are shifted, and -100 without loss; the mask is the loss weights, which may be fractional.
        ``cu_seqlens`` (tokens of documents) and ``cu_seqlens_padded`` (their rooms) int32 [rooms + 1], and
        ``max_seqlen`` int32 [1], of the longest room. And the vision inputs in the model's own names.

    Raises:
        ReaderError: sequences cannot express the mask, or the part is of another layout than zigzag.
    """
    rooms = batch.cu_seqlens_padded
    batch.cu_seqlens_local  # noqa: B018  # Transformer Engine knows no other slices
    axes = batch.position_ids
    return {
        "tokens": batch.tokens[None],
        "labels": batch.labels[None],
        "loss_mask": batch.loss_weights[None],
        "position_ids": axes if len(axes) == 1 else axes[:, None],
        "cu_seqlens": torch.nn.functional.pad(batch.document_lengths.cumsum(0), (1, 0)).int(),
        "cu_seqlens_padded": rooms,
        "max_seqlen": torch.diff(rooms).max()[None],
        **(batch.model_inputs() if batch.units else {}),
    }


def to_bridge(batch: RankBatch) -> dict[str, Any]:
    """A whole pack as a training step of Megatron Bridge takes it, which cuts it for context-parallel ranks itself.

    Returns:
        Of a pack for a Qwen3-VL or Qwen3.5 model: the THD batch of Bridge's collate functions (0.6) for its
        ``vlm_step``. ``input_ids``, ``labels``, ``loss_mask`` [1, seq], ``position_ids`` [3, 1, seq], edges of
        documents ``cu_seqlens_q`` and of their rooms ``cu_seqlens_q_padded`` int32 [documents + 1], and
        ``visual_inputs`` with all pixels.
        Of others, which must be text: what ``GPTSFTPackedDataset`` (0.3) collates for ``gpt_step``. There
        ``cu_seqlens`` are the edges of rooms, and ``cu_seqlens_unpadded`` those of documents, each with -1 behind
        them, and ``..._argmin`` says where.

    Raises:
        ReaderError: as :func:`to_megatron`, the batch is a part of a pack, or it has images for another model.
    """
    found: dict[str, Any] = load_extra("bridge").bridge_batch(batch)
    return found

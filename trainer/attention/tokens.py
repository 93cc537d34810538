"""Values for each token, between the order of a rank's slice and the natural order of the whole pack."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from preshard.schemas.errors import ReaderError
from preshard.schemas.layout import slice_positions
from preshard.trainer.attention.context_parallel import ContextParallel, all_gather_single
from preshard.trainer.attention.mask import PackPart


def gather_tokens(
    x: Shaped[Tensor, "local ..."], batch: PackPart, cp: ContextParallel | None = None
) -> Shaped[Tensor, "seq ..."]:
    """The values of all ranks' tokens, in the natural order of the pack, on each rank.

    All ranks of the pack call it together, and compute the same from it, such as a loss of whole documents. So the
    gradient of a rank's values is its own part of the gradient, and nothing is sent for it: a loss that every rank
    takes from the whole counts once when gradients are summed over ranks. The reverse is :func:`slice_tokens`.

    Args:
        x: a value for each of this rank's tokens, of any type and further shape, on the device of the group.
        batch: the pack.
        cp: this rank's place among the ranks of the pack; None for a single rank.

    Raises:
        ReaderError: there are not as many values as this rank has tokens, or the batch was read for another split.
    """
    _check(len(x), len(batch.positions), batch, cp)
    found: Tensor = _GatherTokens.apply(x, batch, None if cp is None else cp.cp_group)
    return found


def slice_tokens(
    x: Shaped[Tensor, "seq ..."], batch: PackPart, cp: ContextParallel | None = None
) -> Shaped[Tensor, "local ..."]:
    """This rank's part of values of all tokens in natural order, in the order of its slice.

    All ranks of the pack call it together, each with the same values. Nothing is sent forward; the gradient joins those
    of all slices, so that each rank has the whole of it, as :func:`gather_tokens` asks.

    Args:
        x: a value for each token of the pack.
        batch: the pack.
        cp: this rank's place among the ranks of the pack; None for a single rank.

    Raises:
        ReaderError: there are not as many values as the pack has tokens, or the batch was read for another split.
    """
    _check(len(x), batch.seq_len, batch, cp)
    found: Tensor = _SliceTokens.apply(x, batch, None if cp is None else cp.cp_group)
    return found


def _check(found: int, asked: int, batch: PackPart, cp: ContextParallel | None) -> None:
    if found != asked:
        raise ReaderError(
            f"x has {found} values, and the batch {asked} tokens: give one for each, in the first dimension"
        )
    size = 1 if cp is None else cp.cp_size
    ring = 1 if cp is None else cp.ring_degree
    if batch.layout.ring_degree != ring or len(batch.positions) * size != batch.seq_len:
        raise ReaderError(
            f"the batch has {len(batch.positions)} of {batch.seq_len} tokens and a layout of ring degree "
            f"{batch.layout.ring_degree}; cp has {size} ranks and ring degree {ring}: read it with the degrees of cp"
        )


def _gathered(x: Tensor, batch: PackPart, group: dist.ProcessGroup | None) -> Tensor:
    """Slices joined, and put into natural order.

    Ulysses ranks have consecutive parts of a ring rank's slice, so ranks in their order have the slices of the ring.
    """
    order = np.concatenate([slice_positions(batch.layout.runs, rank) for rank in range(batch.layout.ring_degree)])
    sent = x.contiguous()
    if group is not None:
        received = sent.new_empty((batch.seq_len, *sent.shape[1:]))
        both = (
            (received, sent) if sent.dtype is not torch.bool else (received.view(torch.uint8), sent.view(torch.uint8))
        )
        all_gather_single(*both, group)
        sent = received
    natural = torch.empty_like(sent)
    natural[torch.from_numpy(order).to(sent.device, non_blocking=True)] = sent
    return natural


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: PackPart, group: dist.ProcessGroup | None) -> Tensor:
        ctx.positions = batch.positions
        return _gathered(x, batch, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0][ctx.positions.to(grads[0].device)], None, None


class _SliceTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: PackPart, group: dist.ProcessGroup | None) -> Tensor:
        ctx.dealt = batch, group
        return x[batch.positions.to(x.device)]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _gathered(grads[0], *ctx.dealt), None, None

"""The weighted sum of token losses, with the logits of only a few tokens in memory at a time."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from preshard.schemas.sequence import IGNORE_INDEX

LOGITS_BYTES = 2**30
"""The most bytes of logits that exist at once, by default.

Logits take memory, and after every chunk the whole gradient of the output projection is read and written. With 1 GiB, a
vocabulary of 151,936 and float32, a chunk has 1,766 tokens, so that for 16,384 tokens this gradient moves 10 times; in
chunks of 512 tokens, a usual number, it would move 32 times. The gradient itself takes 2.3 GiB at a hidden size of
4,096, so that the logits add less than a half to it.
"""


def loss_sum(
    hidden: Float[Tensor, "local hidden"],
    weight: Float[Tensor, "vocab hidden"],
    labels: Int64[Tensor, "local"],
    loss_weights: Float32[Tensor, "local"],
    *,
    logits_bytes: int = LOGITS_BYTES,
    loss_tokens: Int64[Tensor, "counted"] | None = None,
    softcap: float | None = None,
) -> Float[Tensor, ""]:
    """The sum over tokens of loss weight x cross entropy of ``hidden @ weight.T`` against the label.

    A sum and not a mean: ranks and micro-batches add up their sums and divide once, by the sum of all loss weights, so
    the result does not depend on how many ranks share the work. Tokens without loss cost nothing. If no token has loss,
    the sum is 0 and its gradients are zeros, not missing: the backward pass runs the same collectives on every rank.

    Logits are computed for as many tokens at a time as ``logits_bytes`` allows, in the dtype of ``hidden``, and again
    in the backward pass. Softmax, sums and the gradient of ``weight`` over the chunks are in at least float32; a frozen
    ``weight`` has no gradient in memory.

    Args:
        hidden: last hidden states.
        weight: the output projection.
        labels: the token to predict, or ``IGNORE_INDEX`` where there is no loss.
        loss_weights: weight of each token's loss.
        logits_bytes: the most bytes of logits that exist at once; at least one token's do.
        loss_tokens: tokens with loss. Without it they are looked for, and the host waits until a device has found them.
        softcap: logits x become softcap x tanh(x / softcap); None if they stay as they are.
    """
    counted = torch.nonzero(labels != IGNORE_INDEX)[:, 0] if loss_tokens is None else loss_tokens
    losses = token_losses(hidden, weight, labels, loss_tokens=counted, logits_bytes=logits_bytes, softcap=softcap)
    return (losses * loss_weights[counted].to(losses.dtype)).sum()


def token_losses(
    hidden: Float[Tensor, "local hidden"],
    weight: Float[Tensor, "vocab hidden"],
    labels: Int64[Tensor, "local"],
    *,
    loss_tokens: Int64[Tensor, "counted"],
    logits_bytes: int = LOGITS_BYTES,
    softcap: float | None = None,
) -> Float[Tensor, "counted"]:
    """The cross entropy of each of some tokens, without weights; arguments as of :func:`loss_sum`."""
    chunk = tokens_of_a_chunk(len(weight), hidden.dtype, logits_bytes, is_capped=softcap is not None)
    losses: Tensor = _ChunkedLoss.apply(hidden[loss_tokens], weight, labels[loss_tokens], chunk, softcap)
    return losses


def tokens_of_a_chunk(
    vocabulary: int, dtype: torch.dtype, logits_bytes: int = LOGITS_BYTES, *, is_capped: bool = False
) -> int:
    """Number of tokens whose logits fit into so many bytes, with the copies of them that the backward pass makes.

    Probabilities are in at least float32. Where the model computes in less, a copy in its dtype exists beside them, and
    where logits are capped, the slopes of the cap.
    """
    summed = torch.promote_types(dtype, torch.float32)
    copies = summed.itemsize if summed == dtype else summed.itemsize + dtype.itemsize
    copies += summed.itemsize * is_capped
    return max(1, logits_bytes // (vocabulary * copies))


class _ChunkedLoss(Function):
    """Cross entropy by chunks; saves one number per token, the log of its sum of exponentials."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        chunk: int,
        softcap: float | None,
    ) -> Float[Tensor, "counted"]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        log_sums = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        losses = torch.empty_like(log_sums)
        for part in _parts(len(hidden), chunk):
            logits = _capped((hidden[part] @ weight.T).to(dtype), softcap)
            predicted = logits.gather(1, labels[part, None])[:, 0]
            largest = logits.amax(1)
            log_sums[part] = logits.sub_(largest[:, None]).exp_().sum(1).log_().add_(largest)
            losses[part] = log_sums[part] - predicted
            del logits  # or the next chunk's would exist beside it
        ctx.save_for_backward(hidden, weight, labels, log_sums)
        ctx.chunk, ctx.softcap = chunk, softcap
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "counted"]) -> tuple[Tensor, Tensor | None, None, None, None]:
        hidden, weight, labels, log_sums = ctx.saved_tensors
        d_hidden, d_weight = torch.zeros_like(hidden), None
        if ctx.needs_input_grad[1]:
            d_weight = torch.zeros(weight.shape, dtype=log_sums.dtype, device=weight.device)
        for part in _parts(len(hidden), ctx.chunk):
            d_logits = _capped((hidden[part] @ weight.T).to(log_sums.dtype), ctx.softcap)
            slopes = None if ctx.softcap is None else 1 - (d_logits / ctx.softcap) ** 2
            d_logits = d_logits.sub_(log_sums[part, None]).exp_()
            d_logits[torch.arange(len(d_logits), device=weight.device), labels[part]] -= 1
            d_logits *= grad[part, None]
            if slopes is not None:
                d_logits *= slopes
            low = d_logits.to(hidden.dtype)
            d_hidden[part] = low @ weight
            if d_weight is None:
                pass
            elif low.dtype == d_weight.dtype:
                d_weight.addmm_(low.T, hidden[part])  # adds where the sum lies: no second gradient beside it
            else:
                d_weight += low.T @ hidden[part]
            del d_logits, low, slopes
        return d_hidden, None if d_weight is None else d_weight.to(weight.dtype), None, None, None


def _capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Changes the logits in place."""
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


def _parts(count: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, count)) for start in range(0, count, chunk)]

"""The weighted sum of token losses, with the logits of only a few tokens in memory at a time."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from schemas.sequence import IGNORE_INDEX

CHUNK = 512
"""Tokens whose logits exist at once: with a vocabulary of 131,072, 512 of them take a quarter GiB in float32."""


def loss_sum(
    hidden: Float[Tensor, "local hidden"],
    weight: Float[Tensor, "vocab hidden"],
    labels: Int64[Tensor, "local"],
    loss_weights: Float32[Tensor, "local"],
    chunk: int = CHUNK,
    *,
    loss_tokens: Int64[Tensor, "counted"] | None = None,
) -> Float[Tensor, ""]:
    """The sum over tokens of loss weight x cross entropy of ``hidden @ weight.T`` against the label.

    A sum and not a mean: ranks and micro-batches add up their sums and divide once, by the sum of all loss weights, so
    the result does not depend on how many ranks share the work. Tokens without loss cost nothing. If no token has loss,
    the sum is 0 and its gradients are zeros, not missing: the backward pass runs the same collectives on every rank.

    Logits are computed ``chunk`` tokens at a time, in the dtype of ``hidden``, and again in the backward pass. Softmax,
    sums and the gradient of ``weight`` over the chunks are in at least float32.

    Args:
        hidden: last hidden states.
        weight: the output projection.
        labels: the token to predict, or ``IGNORE_INDEX`` where there is no loss.
        loss_weights: weight of each token's loss.
        chunk: tokens of a chunk.
        loss_tokens: tokens with loss. Without it they are looked for, and the host waits until a device has found them.
    """
    counted = torch.nonzero(labels != IGNORE_INDEX)[:, 0] if loss_tokens is None else loss_tokens
    total: Tensor = _ChunkedLoss.apply(hidden[counted], weight, labels[counted], loss_weights[counted], chunk)
    return total


class _ChunkedLoss(Function):
    """Cross entropy by chunks; saves one number per token, the log of its sum of exponentials."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, loss_weights: Tensor, chunk: int
    ) -> Float[Tensor, ""]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        log_sums = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        total = torch.zeros((), dtype=dtype, device=hidden.device)
        for part in _parts(len(hidden), chunk):
            logits = (hidden[part] @ weight.T).to(dtype)
            log_sums[part] = logits.logsumexp(1)
            losses = log_sums[part] - logits.gather(1, labels[part, None])[:, 0]
            total += (losses * loss_weights[part].to(dtype)).sum()
        ctx.save_for_backward(hidden, weight, labels, loss_weights, log_sums)
        ctx.chunk = chunk
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden, weight, labels, loss_weights, log_sums = ctx.saved_tensors
        d_hidden = torch.zeros_like(hidden)
        d_weight = torch.zeros(weight.shape, dtype=log_sums.dtype, device=weight.device)
        for part in _parts(len(hidden), ctx.chunk):
            d_logits = ((hidden[part] @ weight.T).to(log_sums.dtype) - log_sums[part, None]).exp_()
            d_logits[torch.arange(len(d_logits), device=weight.device), labels[part]] -= 1
            d_logits *= (loss_weights[part].to(log_sums.dtype) * grad)[:, None]
            d_logits_low = d_logits.to(hidden.dtype)
            d_hidden[part] = d_logits_low @ weight
            d_weight += (d_logits_low.T @ hidden[part]).to(d_weight.dtype)
        return d_hidden, d_weight.to(weight.dtype), None, None, None


def _parts(count: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, count)) for start in range(0, count, chunk)]

# ruff: noqa: N803, N806 (shape suffixes)
"""The exchange of Ulysses: from a piece of the tokens with all heads to all tokens with some of the heads, and back.

Shapes: U ranks of the Ulysses axis, H query heads, K key heads, L tokens of a rank, S = U * L tokens of all ranks,
D head_dim of queries and keys, V of values, G heads of a message for each rank. A message has its receivers first:
x_UGLD.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from preshard.trainer.attention.pieces import repeated_kv_heads


class _TokensToHeads(torch.autograd.Function):
    """All-to-all [U * G, L, D] -> [G, U * L, D]; its gradient takes the opposite way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, degree: int, group: dist.ProcessGroup) -> Tensor:
        ctx.degree, ctx.group = degree, group
        return _tokens_to_heads(x, degree, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _heads_to_tokens(grads[0], ctx.degree, ctx.group), None, None


class _HeadsToTokens(torch.autograd.Function):
    """All-to-all [G, U * L, D] -> [U * G, L, D]; its gradient takes the opposite way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, degree: int, group: dist.ProcessGroup) -> Tensor:
        ctx.degree, ctx.group = degree, group
        return _heads_to_tokens(x, degree, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _tokens_to_heads(grads[0], ctx.degree, ctx.group), None, None


def _tokens_to_heads(x: Tensor, degree: int, group: dist.ProcessGroup) -> Tensor:
    n_heads, n_tokens, head_dim = x.shape
    sent = x.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    by_rank = received.view(degree, n_heads // degree, n_tokens, head_dim)
    return by_rank.transpose(0, 1).reshape(n_heads // degree, degree * n_tokens, head_dim)


def _heads_to_tokens(x: Tensor, degree: int, group: dist.ProcessGroup) -> Tensor:
    n_heads, n_tokens, head_dim = x.shape
    sent = x.reshape(n_heads, degree, n_tokens // degree, head_dim).transpose(0, 1).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received.view(degree * n_heads, n_tokens // degree, head_dim)


def exchange_for_heads(
    x_HLD: Float[Tensor, "H L D"], degree: int, group: dist.ProcessGroup | None
) -> Float[Tensor, "H/U S D"]:
    """All tokens of the ranks in rank order, with this rank's heads only; one message to each rank."""
    if degree == 1 or group is None:
        return x_HLD
    x_GSD: Tensor = _TokensToHeads.apply(x_HLD, degree, group)
    return x_GSD


def scatter_heads(
    q_HLD: Float[Tensor, "H L D"],
    k_KLD: Float[Tensor, "K L D"],
    v_KLV: Float[Tensor, "K L V"],
    degree: int,
    group: dist.ProcessGroup | None,
) -> tuple[Float[Tensor, "H/U S D"], Float[Tensor, "K/U S D"], Float[Tensor, "K/U S V"]]:
    """All tokens of the axis in rank order, with this rank's heads only; one message to each rank.

    Where there are fewer key heads than ranks, or they do not divide, each is sent more than once. Query head h still
    reads key head ``h // (H / K)``, and the gradients of the copies are added (Jacobs et al. 2023, DeepSpeed Ulysses).
    Keys and values then have messages of their own: the copies of only one are in memory at a time. So they have where
    they differ in width.
    """
    if degree == 1 or group is None:
        return q_HLD, k_KLD, v_KLV
    copies = repeated_kv_heads(len(k_KLD), degree) // len(k_KLD)
    if copies > 1 or k_KLD.shape[-1] != v_KLV.shape[-1]:
        q_GSD = exchange_for_heads(q_HLD, degree, group)
        k_GSD, v_GSD = (exchange_for_heads(x.repeat_interleave(copies, dim=0), degree, group) for x in (k_KLD, v_KLV))
        return q_GSD, k_GSD, v_GSD
    parts = [q_HLD, k_KLD, v_KLV]
    sizes = [len(part) // degree for part in parts]
    by_rank = torch.cat([part.unflatten(0, (degree, size)) for part, size in zip(parts, sizes, strict=True)], dim=1)
    # Copies, since kernels load what does not begin its memory more slowly, and the message can go.
    q_GSD, k_GSD, v_GSD = (x.clone() for x in exchange_for_heads(by_rank.flatten(0, 1), degree, group).split(sizes))
    return q_GSD, k_GSD, v_GSD


def gather_heads(
    out_GSV: Float[Tensor, "H/U S V"], degree: int, group: dist.ProcessGroup | None
) -> Float[Tensor, "H L V"]:
    """The opposite of ``exchange_for_heads`` and ``scatter_heads``: this rank's tokens, with all heads."""
    if degree == 1 or group is None:
        return out_GSV
    out: Tensor = _HeadsToTokens.apply(out_GSV, degree, group)
    return out

# ruff: noqa: N803 (shape suffixes)
"""Attention of queries against keys that are all at hand: a kernel as a differentiable function.

Shapes: H query heads, K key heads, Q queries, T keys, D head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from trainer.attention.kernels import Kernel, Prepared


class _Local(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, prepared: Prepared) -> Tensor:
        out, lse = kernel.forward(q, k, v, prepared)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.kernel, ctx.prepared = kernel, prepared
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = ctx.kernel.backward(grads[0].contiguous(), q, k, v, out, lse, ctx.prepared)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def local_attention(
    q_HQD: Float[Tensor, "H Q D"],
    k_KTD: Float[Tensor, "K T D"],
    v_KTD: Float[Tensor, "K T D"],
    kernel: Kernel,
    prepared: Prepared,
) -> Float[Tensor, "H Q D"]:
    """Attention of one process, differentiable. ``prepared`` is what the kernel made of these queries and keys."""
    out: Tensor = _Local.apply(q_HQD, k_KTD, v_KTD, kernel, prepared)
    return out

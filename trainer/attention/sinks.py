# ruff: noqa: N803, N806 (shape suffixes)
"""Attention sinks: a learnt logit of each query head joins the softmax, and stands for no value (Xiao et al. 2024).

A sink is one more part of the keys, whose output is 0 and whose log-sum-exp is the logit. So it is merged once into
whole rows, and the kernels, which can differentiate a part of the keys by the results of whole rows, need not know it.

Shapes: H query heads, Q queries, T keys, K key heads, D head_dim of queries and keys, V of values.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from preshard.trainer.attention.kernels import Kernel, Prepared, Whole
from preshard.trainer.attention.kernels.whole import accumulation_dtype


def add_sinks(
    out_HQV: Float[Tensor, "H Q V"], lse_HQ: Float[Tensor, "H Q"], sinks_H: Float[Tensor, "H"]
) -> tuple[Float[Tensor, "H Q V"], Float[Tensor, "H Q"]]:
    """Output and log-sum-exp of whole rows with their sinks, in the accumulation dtype. A row without keys stays 0."""
    sinks_H1 = sinks_H.to(lse_HQ.dtype).unsqueeze(-1)
    keys_share_HQ = torch.sigmoid(lse_HQ - sinks_H1)
    return out_HQV * keys_share_HQ.unsqueeze(-1), torch.logaddexp(lse_HQ, sinks_H1)


def sinks_gradient(
    dout_HQV: Float[Tensor, "H Q V"],
    out_HQV: Float[Tensor, "H Q V"],
    lse_HQ: Float[Tensor, "H Q"],
    sinks_H: Float[Tensor, "H"],
) -> Float[Tensor, "H"]:
    """The gradient of the sinks by these rows, from what :func:`add_sinks` gave, in the accumulation dtype."""
    dtype = lse_HQ.dtype
    share_HQ = torch.exp(sinks_H.to(dtype).unsqueeze(-1) - lse_HQ)
    return -(share_HQ * (dout_HQV.to(dtype) * out_HQV.to(dtype)).sum(dim=-1)).sum(dim=-1)


def own_sinks(sinks_H: Float[Tensor, "H"] | None, degree: int, rank: int) -> Float[Tensor, "H/U"] | None:
    """The sinks of the heads that a rank of the Ulysses axis gets."""
    return None if sinks_H is None else sinks_H.unflatten(0, (degree, -1))[rank]


def compute_rows(
    kernel: Kernel, prepared: Prepared, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...], Any]:
    """Whole rows: the output, what to save, and the backward, which is None where no query sees a key."""
    if prepared.empty:
        return q.new_zeros(*q.shape[:2], v.shape[-1]), (), None
    whole = kernel.whole(q, k, v, prepared) if sinks is None else _whole_with_sinks(kernel, prepared, q, k, v, sinks)
    return whole.out, whole.saved, whole.backward


def differentiate_rows(
    dout: Tensor, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None], saved: tuple[Tensor, ...], backward: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v, in the dtype of ``Whole.backward``, and of the sinks, if there are any.

    Args:
        inputs: q, k, v and the sinks.
        saved, backward: from :func:`compute_rows`.
    """
    *qkv, sinks = inputs
    if backward is None:
        dq, dk, dv = map(torch.zeros_like, qkv)
        return dq, dk, dv, None if sinks is None else torch.zeros_like(sinks, dtype=accumulation_dtype(dout.dtype))
    dout = dout.contiguous()
    dq, dk, dv = backward(dout, tuple(qkv), saved)
    if sinks is None:
        return dq, dk, dv, None
    out, lse = saved
    return dq, dk, dv, sinks_gradient(dout, out, lse, sinks)


def _whole_with_sinks(
    kernel: Kernel, prepared: Prepared, q_HQD: Tensor, k_KTD: Tensor, v_KTV: Tensor, sinks_H: Tensor
) -> Whole:
    def backward(dout: Tensor, inputs: tuple[Tensor, Tensor, Tensor], saved: tuple[Tensor, ...]) -> Any:
        out, lse = saved
        return kernel.backward(dout, *inputs, out, lse, prepared)

    out, lse = add_sinks(*kernel.forward(q_HQD, k_KTD, v_KTV, prepared), sinks_H)
    out = out.to(q_HQD.dtype)
    return Whole(out=out, saved=(out, lse), backward=backward)

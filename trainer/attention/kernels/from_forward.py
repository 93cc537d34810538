# ruff: noqa: N803, N806 (shape suffixes)
"""The backward over one part of the keys, by a forward that torch can differentiate.

With parts t of the keys, ``lse = logsumexp_t lse_t`` and ``out = sum_t w_t out_t``, ``w_t = exp(lse_t - lse)``. Part t
reaches the loss through ``out_t`` and, as ``d w_s / d lse_t = w_s (s == t) - w_s w_t``, through ``lse_t``:

    d loss / d out_t = w_t dout
    d loss / d lse_t = w_t <dout, out_t> - w_t sum_s w_s <dout, out_s> = w_t <dout, out_t - out>

so running the forward of part t again and passing both through it yields its gradients. It costs one forward more than
a kernel whose backward takes the merged ``out`` and ``lse``. A row that sees none of part t has ``w_t = 0`` and
``out_t = 0``, hence two zeros and never ``-inf - -inf``.

Shapes: H query heads, K key heads, Q queries, T keys, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from preshard.trainer.attention.merge import accumulation_dtype, share

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def backward_from_forward(
    forward: Forward,
    dout_HQD: Float[Tensor, "H Q D"],
    q_HQD: Float[Tensor, "H Q D"],
    k_KTD: Float[Tensor, "K T D"],
    v_KTD: Float[Tensor, "K T D"],
    out_HQD: Float[Tensor, "H Q D"],
    lse_HQ: Float[Tensor, "H Q"],
) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "K T D"], Float[Tensor, "K T D"]]:
    """Gradients of q, k and v by these keys alone, in the accumulation dtype.

    Args:
        forward: from q, k and v to the output and log-sum-exp over these keys, differentiable in both.
        dout_HQD: gradient of the whole rows' output.
        out_HQD, lse_HQ: of the whole rows, over other keys too.
    """
    inputs = tuple(x.detach().requires_grad_() for x in (q_HQD, k_KTD, v_KTD))
    with torch.enable_grad():
        part_HQD, part_lse_HQ = forward(*inputs)
    dtype = accumulation_dtype(q_HQD.dtype)
    dpart = share(part_lse_HQ.detach(), lse_HQ) * dout_HQD.to(dtype)
    dpart_lse = (dpart * (part_HQD.detach().to(dtype) - out_HQD.to(dtype))).sum(dim=-1)
    grads = torch.autograd.grad(
        (part_HQD, part_lse_HQ), inputs, (dpart.to(part_HQD.dtype), dpart_lse.to(part_lse_HQ.dtype))
    )
    dq, dk, dv = (grad.to(dtype) for grad in grads)
    return dq, dk, dv

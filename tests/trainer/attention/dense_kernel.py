# ruff: noqa: N803 (shape suffixes)
"""A kernel of plain torch with a dense matrix, which stands for kernels that torch can differentiate.

Shapes: H query heads, K key heads, Q queries, T keys, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from preshard.trainer.attention.kernels import Whole
from preshard.trainer.attention.kernels.flex import backward_from_forward
from preshard.trainer.attention.kernels.whole import accumulation_dtype, whole_by_autograd
from preshard.trainer.attention.mask import MaskTensors, visible_block


@dataclass(frozen=True, kw_only=True)
class DenseMask:
    """The whole matrix: memory grows with queries x keys."""

    allowed: Bool[Tensor, "Q T"]

    @property
    def empty(self) -> bool:
        return not bool(self.allowed.any())


@dataclass(frozen=True, kw_only=True)
class DenseKernel:
    """Attention by a dense matrix, with the backward of ``backward_from_forward``."""

    def prepare(self, queries: MaskTensors, keys: MaskTensors, listed: object = None) -> DenseMask:  # noqa: ARG002
        every = torch.arange(len(keys), device=keys.positions.device)
        return DenseMask(allowed=visible_block(queries, keys, slice(0, len(queries)), every))

    def forward(
        self,
        q_HQD: Float[Tensor, "H Q D"],
        k_KTD: Float[Tensor, "K T D"],
        v_KTD: Float[Tensor, "K T D"],
        mask: DenseMask,
    ) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "H Q"]]:
        dtype, copies = accumulation_dtype(q_HQD.dtype), len(q_HQD) // len(k_KTD)
        q, k, v = q_HQD.to(dtype), k_KTD.to(dtype), v_KTD.to(dtype)
        scores = q @ k.repeat_interleave(copies, dim=0).mT * q.shape[-1] ** -0.5
        # Written so that a row without keys passes no infinity on: torch's softmax would make NaN gradients of it.
        highest = scores.masked_fill(~mask.allowed, -torch.inf).amax(dim=-1, keepdim=True).detach()
        highest = highest.masked_fill(highest == -torch.inf, 0.0)
        weights = torch.exp((scores - highest).masked_fill(~mask.allowed, -torch.inf))
        total = weights.sum(dim=-1)
        seen = total > 0
        safe_total = torch.where(seen, total, 1.0)
        out = weights @ v.repeat_interleave(copies, dim=0) / safe_total.unsqueeze(-1)
        lse = torch.where(seen, safe_total.log() + highest.squeeze(-1), -torch.inf)
        return out.to(q_HQD.dtype), lse

    def whole(
        self,
        q_HQD: Float[Tensor, "H Q D"],
        k_KTD: Float[Tensor, "K T D"],
        v_KTD: Float[Tensor, "K T D"],
        mask: DenseMask,
    ) -> Whole:
        return whole_by_autograd(lambda q, k, v: self.forward(q, k, v, mask)[0], q_HQD, k_KTD, v_KTD)

    def backward(
        self,
        dout_HQD: Float[Tensor, "H Q D"],
        q_HQD: Float[Tensor, "H Q D"],
        k_KTD: Float[Tensor, "K T D"],
        v_KTD: Float[Tensor, "K T D"],
        out_HQD: Float[Tensor, "H Q D"],
        lse_HQ: Float[Tensor, "H Q"],
        mask: DenseMask,
    ) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "K T D"], Float[Tensor, "K T D"]]:
        def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return self.forward(q, k, v, mask)

        return backward_from_forward(forward, dout_HQD, q_HQD, k_KTD, v_KTD, out_HQD, lse_HQ)

# ruff: noqa: N803 (shape suffixes)
"""Joins attention over parts of the keys: each part's output is weighted by its share of the softmax.

Shapes: H heads, Q queries, D head_dim. ``lse`` is the log of the sum of exponentials of a row's scores, -inf for a row
that sees nothing.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which partial results are added: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def nothing_seen(q_HQD: Float[Tensor, "H Q D"]) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "H Q"]]:
    """Output and lse of rows that see no key, in the accumulation dtype."""
    dtype = accumulation_dtype(q_HQD.dtype)
    return torch.zeros_like(q_HQD, dtype=dtype), q_HQD.new_full(q_HQD.shape[:2], -torch.inf, dtype=dtype)


def merge(
    out_HQD: Float[Tensor, "H Q D"],
    lse_HQ: Float[Tensor, "H Q"],
    more_HQD: Float[Tensor, "H Q D"],
    more_lse_HQ: Float[Tensor, "H Q"],
) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "H Q"]]:
    """Output and lse over the keys of two disjoint parts (Dao et al. 2022, FlashAttention, section 3.1).

    The first two tensors are changed and returned: the whole is one pass over the outputs, a linear interpolation by
    the second part's share of the softmax, ``sigmoid(more_lse - lse)``. A row that sees nothing in either part stays 0
    and -inf.
    """
    more_share = torch.sigmoid(more_lse_HQ - lse_HQ).nan_to_num_(0.0)  # -inf - -inf: the row sees nothing
    out_HQD.lerp_(more_HQD.to(out_HQD.dtype), more_share.unsqueeze(-1))
    return out_HQD, torch.logaddexp(lse_HQ, more_lse_HQ, out=lse_HQ)


def share(part_lse_HQ: Float[Tensor, "H Q"], lse_HQ: Float[Tensor, "H Q"]) -> Float[Tensor, "H Q 1"]:
    """The part of a row's softmax that falls on some of its keys: ``exp(part - whole)``, 0 where they see nothing."""
    return torch.exp(part_lse_HQ - lse_HQ).masked_fill(part_lse_HQ == -torch.inf, 0.0).unsqueeze(-1)

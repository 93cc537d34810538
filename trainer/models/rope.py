# ruff: noqa: N803, N806 (shape suffixes)
"""Rotary position embedding (Su et al. 2021, RoFormer) by explicit positions, as a slice is not in natural order.

Shape suffixes: H heads, S tokens, D head_dim.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor


class Rotary:
    """Rotates queries and keys by the angles of their positions.

    The score of a query and a key then depends only on the difference of their positions. Pairs are (i, i + D / 2), as
    in Llama and Qwen. Angles are computed in float64 and the rotation in at least float32: bfloat16 would round the
    positions themselves from 257 on.

    A plain object, not tensors: mixed precision casts the tensors that a layer is passed, and must not cast these.

    Args:
        position_ids: position of each token.
        head_dim: D, even.
        theta: base of the wavelengths, which range from 2 pi to nearly 2 pi theta.
        dtype: of the queries and keys.
    """

    def __init__(self, position_ids: Int64[Tensor, "S"], *, head_dim: int, theta: float, dtype: torch.dtype) -> None:
        device = position_ids.device
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
        angles_SD = position_ids.double()[:, None] * (theta**-exponents)[None, :]
        compute = torch.promote_types(dtype, torch.float32)
        self._cos_SD, self._sin_SD = angles_SD.cos().to(compute), angles_SD.sin().to(compute)

    def __call__(self, x_HSD: Float[Tensor, "H S D"]) -> Float[Tensor, "H S D"]:
        first, second = x_HSD.to(self._cos_SD.dtype).chunk(2, dim=-1)
        cos, sin = self._cos_SD, self._sin_SD
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x_HSD.dtype)

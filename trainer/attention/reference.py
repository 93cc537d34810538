# ruff: noqa: N803, N806 (shape suffixes)
"""Attention under the mask with a dense matrix: the oracle of every other kind, written independently of them.

Shapes: H query heads, K key heads, S tokens, D head_dim of queries and keys, V of values; q_HSD is [H, S, D]. C and X
are widths of a latent and of what a head makes of it.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.schemas.mask import dense_mask
from preshard.trainer.attention.bind import Attend, Options
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.mask import MaskTensors


def bind_attention(layout: TokenLayout, mask: MaskTensors, _cp: ContextParallel, options: Options) -> Attend:
    """The name ``reference``, on one rank."""
    positions = slice_positions(layout.runs, 0)
    return partial(reference_attention, mask=mask, positions=positions, softcap=options.softcap)


def reference_attention(
    q_HSD: Float[Tensor, "H S D"],
    k_KSD: Float[Tensor, "K S D"],
    v_KSV: Float[Tensor, "K S V"],
    mask: MaskTensors,
    positions: Int64[np.ndarray, "S"] | None = None,
    *,
    sinks: Float[Tensor, "H"] | None = None,
    up: Float[Tensor, "C K X"] | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "H S V"]:
    """Exact attention in one process, in the inputs' dtype. A row that sees nothing is 0. Differentiable.

    Memory grows with the square of the length: for tests and short sequences.

    Args:
        q_HSD, k_KSD, v_KSV: query head h reads key head ``h // (H / K)``.
        mask: of the whole pack.
        positions: natural position of each token; by default tokens are in natural order.
        sinks: a logit of each head that joins the softmax of every row, and stands for no value.
        up: makes keys and values of all heads from latents ``[1, S, C]`` in place of keys, and a turned part that all
            heads share in place of values.
        softcap: scores x become ``softcap * tanh(x / softcap)``.
    """
    if up is not None:
        made_KSX = torch.einsum("sc,ckx->ksx", k_KSD[0], up)
        plain = q_HSD.shape[-1] - v_KSV.shape[-1]
        k_KSD = torch.cat([made_KSX[..., :plain], v_KSV.expand(len(made_KSX), -1, -1)], dim=-1)
        v_KSV = made_KSX[..., plain:]
    n_heads, n_kv_heads = len(q_HSD), len(k_KSD)
    k_HSD = k_KSD.repeat_interleave(n_heads // n_kv_heads, dim=0)
    v_HSV = v_KSV.repeat_interleave(n_heads // n_kv_heads, dim=0)
    allowed_SS = torch.from_numpy(dense_mask(mask.host, positions, positions, window=mask.window)).to(q_HSD.device)
    scores_HSS = q_HSD @ k_HSD.mT * q_HSD.shape[-1] ** -0.5
    if softcap is not None:
        scores_HSS = softcap * torch.tanh(scores_HSS / softcap)
    # The smallest finite number, not -inf: rows that see nothing get no NaN, nor do their gradients.
    scores_HSS = scores_HSS.masked_fill(~allowed_SS, torch.finfo(q_HSD.dtype).min)
    if sinks is not None:
        scores_HSS = torch.cat([scores_HSS, sinks[:, None, None].expand(-1, len(allowed_SS), 1)], dim=-1)
    weights_HSS = torch.softmax(scores_HSS, dim=-1)[..., : len(allowed_SS)].masked_fill(~allowed_SS, 0.0)
    return weights_HSS @ v_HSV

# ruff: noqa: N803 (shape suffixes)
"""Ulysses over all ranks of a pack: each holds the whole sequence, with its part of the heads.

Shapes: H query heads, K key heads, L tokens of a rank, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from schemas.layout import TokenLayout, slice_positions
from trainer.attention.heads import gather_heads, scatter_heads
from trainer.attention.kernels import Kernel, Prepared, kernel_for
from trainer.attention.local import local_attention
from trainer.attention.mask import MaskTensors
from trainer.mesh import ContextParallel


@dataclass(frozen=True, kw_only=True)
class UlyssesPlan:
    """What one batch needs beside the values: the tiles of the whole sequence, in the order of the slices."""

    cp: ContextParallel
    kernel: Kernel
    whole: Prepared


def plan_ulysses(
    layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, *, kernel: Kernel | None = None
) -> UlyssesPlan:
    """List the tiles of the whole sequence as the ranks, laid one after the other, hold it."""
    kernel = kernel or kernel_for(mask.doc_ids.device.type)
    tokens = mask.at(np.concatenate([slice_positions(layout.runs, rank) for rank in range(layout.ring_degree)]))
    return UlyssesPlan(cp=cp, kernel=kernel, whole=kernel.prepare(tokens, tokens))


def ulysses_attention(
    q_HLD: Float[Tensor, "H L D"], k_KLD: Float[Tensor, "K L D"], v_KLD: Float[Tensor, "K L D"], plan: UlyssesPlan
) -> Float[Tensor, "H L D"]:
    """Exact attention by an all-to-all of heads over the whole context-parallel group, whatever its axes.

    Differentiable. From Jacobs et al. 2023, DeepSpeed Ulysses.
    """
    cp = plan.cp
    q, k, v = scatter_heads(q_HLD, k_KLD, v_KLD, cp.cp_size, cp.cp_group)
    out = local_attention(q, k, v, plan.kernel, plan.whole)
    return gather_heads(out, cp.cp_size, cp.cp_group)

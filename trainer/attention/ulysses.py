# ruff: noqa: N803 (shape suffixes)
"""Ulysses over all ranks of a pack: each computes the whole sequence for its part of the heads.

Shapes: H query heads, K key heads, L tokens of a rank, D head_dim.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from torch import Tensor

from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.trainer.attention.exchange import NoExchange
from preshard.trainer.attention.gather import GatherPlan, gather_attention
from preshard.trainer.attention.kernels import Kernel, kernel_for
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.overlap import OverlapPlan
from preshard.trainer.distributed.mesh import ContextParallel


def plan_ulysses(
    layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, *, kernel: Kernel | None = None
) -> GatherPlan:
    """Lists the tiles of the whole sequence, in the order of the ranks' slices."""
    kernel = kernel or kernel_for(mask.device.type)
    positions = np.concatenate([slice_positions(layout.runs, rank) for rank in range(layout.ring_degree)])
    tokens = mask.at(positions)
    one_axis = ContextParallel(ulysses_degree=cp.cp_size, ulysses_rank=cp.cp_rank, ulysses_group=cp.cp_group)
    return GatherPlan(
        cp=one_axis, kernel=kernel, exchange=NoExchange(positions=positions), gathered=kernel.prepare(tokens, tokens)
    )


def plan_overlap(plan: GatherPlan) -> OverlapPlan | None:
    """The same plan for heads in pieces; None for a single rank, which exchanges nothing."""
    if plan.cp.ulysses_group is None:
        return None
    return OverlapPlan(
        degree=plan.cp.ulysses_degree, group=plan.cp.ulysses_group, kernel=plan.kernel, prepared=plan.gathered
    )


def ulysses_attention(
    q_HLD: Float[Tensor, "H L D"], k_KLD: Float[Tensor, "K L D"], v_KLD: Float[Tensor, "K L D"], plan: GatherPlan
) -> Float[Tensor, "H L D"]:
    """Exact attention by an all-to-all of heads over the whole context-parallel group, whatever its axes.

    Once a rank has all tokens of its heads there is nothing left to gather. Differentiable (Jacobs et al. 2023,
    DeepSpeed Ulysses).
    """
    return gather_attention(q_HLD, k_KLD, v_KLD, plan)

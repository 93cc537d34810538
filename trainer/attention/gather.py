# ruff: noqa: N803 (shape suffixes)
"""Attention that gathers keys and values along the ring axis by one collective, then runs one kernel call.

Shapes: H query heads, K key heads, L tokens of a slice, T gathered tokens, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.trainer.attention.exchange import Exchange, KeyExchange, plan_exchange
from preshard.trainer.attention.heads import gather_heads, scatter_heads
from preshard.trainer.attention.kept import once
from preshard.trainer.attention.kernels import Kernel, Prepared, kernel_for
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.merge import accumulation_dtype
from preshard.trainer.distributed.mesh import ContextParallel


@dataclass(frozen=True, kw_only=True)
class GatherPlan:
    """What one batch needs besides the values: which keys arrive, and their tiles with this rank's queries."""

    cp: ContextParallel
    kernel: Kernel
    exchange: KeyExchange
    gathered: Prepared


def plan_gather(
    layout: TokenLayout,
    mask: MaskTensors,
    cp: ContextParallel,
    *,
    exchange: Exchange = "needed",
    kernel: Kernel | None = None,
) -> GatherPlan:
    """Decides what is sent to whom, and lists the tiles.

    Args:
        exchange: ``all`` gathers every key; ``needed`` only those in blocks that a rank's queries see.

    Raises:
        LayoutError: ``layout.needs`` does not cover the mask's tokens in blocks of ``layout.block_size``.
    """
    kernel = kernel or kernel_for(mask.device.type)
    keys = plan_exchange(exchange, layout, mask, cp)
    queries = mask.at(slice_positions(layout.runs, cp.ring_rank))
    return GatherPlan(cp=cp, kernel=kernel, exchange=keys, gathered=kernel.prepare(queries, mask.at(keys.positions)))


def gather_attention(
    q_HLD: Float[Tensor, "H L D"], k_KLD: Float[Tensor, "K L D"], v_KLD: Float[Tensor, "K L D"], plan: GatherPlan
) -> Float[Tensor, "H L D"]:
    """Exact attention of this rank's queries over the whole pack, differentiable.

    Gathering all keys is the context parallelism of Llama 3 (Grattafiori et al. 2024, section 3.3.2). The gathered keys
    are dropped after the forward and gathered again in the backward, so what is kept between the two does not grow with
    the number of ranks. With a Ulysses axis, heads are dealt along it first.
    """
    cp = plan.cp
    q, k, v = scatter_heads(q_HLD, k_KLD, v_KLD, cp.ulysses_degree, cp.ulysses_group)
    out: Tensor = _Gather.apply(q, k, v, plan)
    return gather_heads(out, cp.ulysses_degree, cp.ulysses_group)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: GatherPlan) -> Tensor:
        def compute() -> tuple[Tensor, tuple[Tensor, ...], Any]:
            keys = plan.exchange.gather(k, v)
            if plan.gathered.empty:
                return torch.zeros_like(q), (), None
            call = plan.kernel.whole(q, *keys, plan.gathered)
            return call.out, call.saved, call.backward

        out, saved, ctx.call = once(compute)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, *saved)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *saved = ctx.saved_tensors
        plan: GatherPlan = ctx.plan
        keys = plan.exchange.gather(k, v)
        if ctx.call is None:
            dq, dk, dv = (torch.zeros_like(x, dtype=accumulation_dtype(q.dtype)) for x in (q, *keys))
        else:
            dq, dk, dv = ctx.call(grads[0].contiguous(), (q, *keys), tuple(saved))
        dk, dv = plan.exchange.give_back(dk, dv)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None

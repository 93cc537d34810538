# ruff: noqa: N803, N806 (shape suffixes)
"""Ring attention: keys and values travel round the ring axis, and each rank merges what its queries see of them.

Shapes: H query heads, K key heads, L tokens of a slice, Q queries, D head_dim of queries and keys, V of values.
A message kv_N has keys [K, L, D], then values [K, L, V].
``lse`` is the log of the sum of exponentials of a row's scores, -inf for a row that sees nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.trainer.attention.bind import Attend, Options
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.gather import list_needs
from preshard.trainer.attention.heads import gather_heads, scatter_heads
from preshard.trainer.attention.kept import once
from preshard.trainer.attention.kernels import Kernel, Prepared
from preshard.trainer.attention.kernels.whole import accumulation_dtype
from preshard.trainer.attention.latent import choose_parts, expand, pull_back, value_width
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.sinks import add_sinks, own_sinks, sinks_gradient

# Keys and gradients travel between the same two ranks at the same time.
_KV_TAG, _GRADIENT_TAG = 1, 2


@dataclass(frozen=True, kw_only=True)
class RingPlan:
    """Plan of one batch: ``steps[t]`` is prepared for the keys of ring rank ``rank - t``.

    There are as many steps as any rank needs, the same on all.
    """

    cp: ContextParallel
    kernel: Kernel
    steps: tuple[Prepared, ...]


def plan_ring(layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, *, kernel: Kernel) -> RingPlan:
    """Lists the tiles of each of this rank's ring steps. With a window, the last steps may see nothing on any rank."""
    slices = [mask.at(slice_positions(layout.runs, rank)) for rank in range(cp.ring_degree)]
    n_steps = cp.ring_degree if mask.window is None else count_steps(layout, mask)
    owners = [(cp.ring_rank - step) % cp.ring_degree for step in range(n_steps)]
    steps = tuple(kernel.prepare(slices[cp.ring_rank], slices[owner]) for owner in owners)
    return RingPlan(cp=cp, kernel=kernel, steps=steps)


def bind_attention(layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, options: Options) -> Attend:
    """The kind ``ring``, and ``hybrid``, which is the name of it on a mesh of both axes."""
    return partial(ring_attention, plan=plan_ring(layout, mask, cp, kernel=options.kernel_for(mask)))


def count_steps(layout: TokenLayout, mask: MaskTensors) -> int:
    """The steps after which no rank of a ring sees anything more."""
    needs, ring = list_needs(layout, mask), layout.ring_degree
    held = [np.unique(slice_positions(layout.runs, rank) // layout.block_size) for rank in range(ring)]
    seen = [step for step in range(ring) for rank in range(ring) if needs[rank, held[(rank - step) % ring]].any()]
    return max(seen, default=0) + 1


def ring_attention(
    q_HLD: Float[Tensor, "H L D"],
    k_KLD: Float[Tensor, "K L D"],
    v_KLV: Float[Tensor, "K L V"],
    plan: RingPlan,
    *,
    sinks: Float[Tensor, "H"] | None = None,
    up: Float[Tensor, "C K X"] | None = None,
) -> Float[Tensor, "H L V"]:
    """Exact attention of this rank's queries over the whole pack, differentiable (Liu et al. 2023, Ring Attention).

    In step t a rank holds the keys of ring rank ``rank - t`` while the next ones are already on their way. A step in
    which its queries see nothing computes nothing. With a Ulysses axis, heads are dealt along it first, which makes it
    Ulysses inside a ring (Fang and Zhao 2024, USP). A ring of R ranks then sends the same bytes whatever the Ulysses
    degree is, since each rank sends the keys of its own heads.

    In the backward keys and values travel round again, and their gradients follow one step behind. The first rank that
    does not own them starts the sum, the last one sends it to the owner. No rank holds more than two slices of keys.
    Latents, where ``up`` is given and they are less than what it makes of them, travel unexpanded.
    """
    cp = plan.cp
    k, v, up = choose_parts(q_HLD, k_KLD, v_KLV, up, cp)
    q, k, v = scatter_heads(q_HLD, k, v, cp.ulysses_degree, cp.ulysses_group)
    out: Tensor = _Ring.apply(q, k, v, own_sinks(sinks, cp.ulysses_degree, cp.ulysses_rank), up, plan)
    return gather_heads(out, cp.ulysses_degree, cp.ulysses_group)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, up: Tensor | None, plan: RingPlan
    ) -> Tensor:
        def compute() -> tuple[Tensor, Tensor]:
            out, lse = _forward(q, k, v, up, plan)
            if sinks is not None:
                out, lse = add_sinks(out, lse, sinks)
            return out.to(q.dtype), lse

        out, lse = once(compute)
        ctx.save_for_backward(q, k, v, sinks, up, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, up, out, lse = ctx.saved_tensors
        dout = grads[0].contiguous()
        dq, dk, dv, dup = _backward(dout, q, k, v, up, out, lse, ctx.plan, with_up=ctx.needs_input_grad[4])
        dsinks = None if sinks is None else sinks_gradient(dout, out, lse, sinks).to(sinks.dtype)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dsinks, None if dup is None else dup.to(up.dtype), None


def _forward(q: Tensor, k: Tensor, v: Tensor, up: Tensor | None, plan: RingPlan) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp over all steps, in the accumulation dtype."""
    out, lse = nothing_seen(q, value_width(q, v, up))
    kv_N = _message(k, v)
    seen = False
    for step, prepared in enumerate(plan.steps):
        coming = _Hop(kv_N, plan.cp, _KV_TAG) if step + 1 < len(plan.steps) else None
        if not prepared.empty:
            keys = _opened(kv_N, k, v) if up is None else expand(*_opened(kv_N, k, v), up, q.shape[-1])
            more, more_lse = plan.kernel.forward(q, *keys, prepared)
            out, lse = merge(out, lse, more, more_lse) if seen else (more.to(out.dtype), more_lse)
            seen = True
        if coming is not None:
            kv_N = coming.wait()
    return out, lse


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, up: Tensor | None, out: Tensor, lse: Tensor, plan: RingPlan,
    *, with_up: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of q, of this rank's own keys and values, and of what it expanded by, in the accumulation dtype."""
    dtype = accumulation_dtype(q.dtype)
    dq = torch.zeros_like(q, dtype=dtype)
    kv_N = _message(k, v)
    own_N = torch.zeros_like(kv_N, dtype=dtype)
    behind: _Hop | None = None
    dup = None if up is None or not with_up else torch.zeros_like(up, dtype=dtype)
    for step, prepared in enumerate(plan.steps):
        coming = _Hop(kv_N, plan.cp, _KV_TAG) if step + 1 < len(plan.steps) else None
        grads = None
        if not prepared.empty:
            latent, shared = _opened(kv_N, k, v)
            keys = (latent, shared) if up is None else expand(latent, shared, up, q.shape[-1])
            more_dq, *grads = plan.kernel.backward(dout, q, *keys, out, lse, prepared)
            dq += more_dq
            if up is not None:
                *grads, more_dup = pull_back(latent, up, *grads, with_up=with_up)
                if dup is not None and more_dup is not None:
                    dup += more_dup
        dkv_N = own_N if step == 0 else behind.wait() if behind is not None else torch.zeros_like(own_N)
        if grads is not None:
            for total, more in zip(_opened(dkv_N, k, v), grads, strict=True):
                total.add_(more)
        if coming is not None:
            kv_N = coming.wait()
        if step > 0:
            last = step + 1 == len(plan.steps)  # the sum is complete, and goes back to the owner of the keys
            behind = _Hop(dkv_N, plan.cp, _GRADIENT_TAG, distance=-step if last else 1)
    return dq, *_opened(own_N if behind is None else own_N + behind.wait(), k, v), dup


def _message(k_KLD: Tensor, v_KLV: Tensor) -> Float[Tensor, "N"]:
    kv_N = k_KLD.new_empty(k_KLD.numel() + v_KLV.numel())
    for place, part in zip(_opened(kv_N, k_KLD, v_KLV), (k_KLD, v_KLV), strict=True):
        place.copy_(part)
    return kv_N


def _opened(kv_N: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Views of a message's keys and values, in the shapes of ``k`` and ``v``."""
    keys, values = kv_N.split([k.numel(), v.numel()])
    return keys.view(k.shape), values.view(v.shape)


def nothing_seen(q_HQD: Float[Tensor, "H Q D"], width: int) -> tuple[Float[Tensor, "H Q V"], Float[Tensor, "H Q"]]:
    """Output, of a width of values, and lse of rows that see no key, in the accumulation dtype."""
    dtype = accumulation_dtype(q_HQD.dtype)
    shape = q_HQD.shape[:2]
    return q_HQD.new_zeros(*shape, width, dtype=dtype), q_HQD.new_full(shape, -torch.inf, dtype=dtype)


def merge(
    out_HQV: Float[Tensor, "H Q V"],
    lse_HQ: Float[Tensor, "H Q"],
    more_HQV: Float[Tensor, "H Q V"],
    more_lse_HQ: Float[Tensor, "H Q"],
) -> tuple[Float[Tensor, "H Q V"], Float[Tensor, "H Q"]]:
    """Output and lse over the keys of two disjoint parts (Dao et al. 2022, FlashAttention, section 3.1).

    The first two tensors are changed and returned: the whole is one pass over the outputs, a linear interpolation by
    the second part's share of the softmax, ``sigmoid(more_lse - lse)``. A row that sees nothing in either part stays 0
    and -inf.
    """
    more_share = torch.sigmoid(more_lse_HQ - lse_HQ).nan_to_num_(0.0)  # -inf - -inf: the row sees nothing
    out_HQV.lerp_(more_HQV.to(out_HQV.dtype), more_share.unsqueeze(-1))
    return out_HQV, torch.logaddexp(lse_HQ, more_lse_HQ, out=lse_HQ)


class _Hop:
    """A tensor on its way to the next ring rank, or so many further on, while another arrives from as far behind."""

    def __init__(self, sent: Tensor, cp: ContextParallel, tag: int, *, distance: int = 1) -> None:
        # The sent memory must stay alive until the transfer has ended.
        self._sent, self._received = sent, torch.empty_like(sent)
        after, before = (cp.ring_rank + distance) % cp.ring_degree, (cp.ring_rank - distance) % cp.ring_degree
        self._works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self._sent, group=cp.ring_group, group_peer=after, tag=tag),
                dist.P2POp(dist.irecv, self._received, group=cp.ring_group, group_peer=before, tag=tag),
            ]
        )

    def wait(self) -> Tensor:
        """Waits for what arrives, and returns it."""
        for work in self._works:
            work.wait()
        return self._received

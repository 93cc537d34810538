# ruff: noqa: N803, N806 (shape suffixes)
"""Attention by an exchange of heads over all ranks of a pack: each then has all tokens of its heads.

A model's projections have ended when its attention is called, so the exchange cannot hide behind them without changing
the model. It can hide behind the kernel: ``overlapped_attention`` deals the heads in pieces, each with messages of its
own, and only the first piece's arrival and the last one's return are waited for with nothing to do.

Shapes: U ranks of the Ulysses axis, H query heads, K key heads, L tokens of a rank, S = U * L tokens of all ranks,
D head_dim of queries and keys, V of values, G heads of a part for each rank. A part of a message has its receivers
first: x_UGLD.
"""

from __future__ import annotations

import math
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
from preshard.trainer.attention.gather import GatherPlan, NoExchange, gather_attention
from preshard.trainer.attention.kept import once
from preshard.trainer.attention.kernels import Kernel
from preshard.trainer.attention.kernels.whole import accumulation_dtype
from preshard.trainer.attention.latent import expand
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.pieces import Piece, list_pieces, repeated_kv_heads
from preshard.trainer.attention.sinks import compute_rows, differentiate_rows, own_sinks


def bind_attention(layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, options: Options) -> Attend:
    """The kind ``ulysses`` (Jacobs et al. 2023, DeepSpeed Ulysses): ``gather`` with nothing left to gather."""
    plan = plan_ulysses(layout, mask, cp, kernel=options.kernel_for(mask))
    overlaps = options.overlap and cp.cp_group is not None
    return partial(overlapped_attention if overlaps else gather_attention, plan=plan)


def check_turns(
    num_heads: int,
    num_kv_heads: int,
    *,
    ulysses_degree: int,
    ring_degree: int,
    overlap: bool,
    head_stride: int,  # noqa: ARG001 (of gather)
) -> None:
    """Checks that a rank has heads enough to exchange some of them while others are computed.

    Raises:
        ConfigError: it has a single one.
    """
    if overlap and (degree := ulysses_degree * ring_degree) > 1:
        list_pieces(num_heads, num_kv_heads, degree)


def plan_ulysses(layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, *, kernel: Kernel) -> GatherPlan:
    """Lists the tiles of the whole sequence, in the order of the ranks' slices."""
    positions = np.concatenate([slice_positions(layout.runs, rank) for rank in range(layout.ring_degree)])
    tokens = mask.at(positions)
    one_axis = ContextParallel(ulysses_degree=cp.cp_size, ulysses_rank=cp.cp_rank, ulysses_group=cp.cp_group)
    return GatherPlan(
        cp=one_axis, kernel=kernel, exchange=NoExchange(positions=positions), gathered=kernel.prepare(tokens, tokens)
    )


def overlapped_attention(
    q_HLD: Float[Tensor, "H L D"],
    k_KLD: Float[Tensor, "K L D"],
    v_KLV: Float[Tensor, "K L V"],
    plan: GatherPlan,
    *,
    sinks: Float[Tensor, "H"] | None = None,
    up: Float[Tensor, "C K X"] | None = None,
) -> Float[Tensor, "H L V"]:
    """Does what ``gather_attention`` does by the same plan, with the same bytes in more messages.

    Raises:
        ConfigError: a rank has a single query head, so there is nothing to overlap with.
    """
    if up is not None:
        k_KLD, v_KLV = expand(k_KLD, v_KLV, up, q_HLD.shape[-1])
    own = own_sinks(sinks, plan.cp.ulysses_degree, plan.cp.ulysses_rank)
    out: Tensor = _Overlapped.apply(q_HLD, k_KLD, v_KLV, own, plan)
    return out


class _Overlapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, plan: GatherPlan) -> Tensor:
        degree = plan.cp.ulysses_degree
        pieces = list_pieces(len(q), len(k), degree)
        ctx.plan, ctx.pieces, ctx.kv_heads, ctx.calls = plan, pieces, len(k), []
        q_UGLD, k_UGLD, v_UGLD = (_by_rank(x, degree) for x in (q, *_copied(k, v, degree)))
        coming = _Sent([q_UGLD[:, pieces[0].queries], k_UGLD[:, pieces[0].keys], v_UGLD[:, pieces[0].keys]], plan)
        saved: list[Tensor] = []
        returns, held = [], (k, v)
        for number, piece in enumerate(pieces):
            q_GSD, *new = coming.tokens()
            held = (new[0], new[1]) if piece.first_of_keys else held
            if number + 1 < len(pieces):
                after = pieces[number + 1]
                keys = [x[:, after.keys] for x in (k_UGLD, v_UGLD)] if after.first_of_keys else []
                coming = _Sent([q_UGLD[:, after.queries], *keys], plan)
            own = _of_piece(sinks, piece)
            out_GSD, kept, call = once(partial(compute_rows, plan.kernel, plan.gathered, q_GSD, *held, own))
            ctx.calls.append((call, len(kept)))
            saved += [q_GSD, *held, *kept]
            returns.append(_Sent([_for_ranks(out_GSD, degree)], plan))
        ctx.save_for_backward(sinks, *saved)
        return torch.cat([sent.heads()[0] for sent in returns], dim=1).flatten(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan: GatherPlan = ctx.plan
        pieces: list[Piece] = ctx.pieces
        degree = plan.cp.ulysses_degree
        dout_UGLD = _by_rank(grads[0], degree)
        sinks, *tensors = ctx.saved_tensors
        saved, dsinks = iter(tensors), []
        coming = _Sent([dout_UGLD[:, pieces[0].queries]], plan)
        returns: list[_Sent] = []
        so_far: tuple[Tensor, Tensor] | None = None
        for number, (piece, (call, n_kept)) in enumerate(zip(pieces, ctx.calls, strict=True)):
            (dout_GSD,) = coming.tokens()
            if number + 1 < len(pieces):
                coming = _Sent([dout_UGLD[:, pieces[number + 1].queries]], plan)
            q_GSD, k_GSD, v_GSD, *kept = (next(saved) for _ in range(3 + n_kept))
            inputs = (q_GSD, k_GSD, v_GSD, _of_piece(sinks, piece))
            dq, dk, dv, dpiece = differentiate_rows(dout_GSD, inputs, tuple(kept), call)
            dsinks += [] if dpiece is None else [dpiece.to(sinks.dtype)]
            dk, dv = (x.to(accumulation_dtype(x.dtype)) for x in (dk, dv))
            so_far = (dk, dv) if so_far is None or piece.first_of_keys else (so_far[0] + dk, so_far[1] + dv)
            whole = [x.to(q_GSD.dtype) for x in so_far] if piece.last_of_keys else []
            returns.append(_Sent([_for_ranks(x, degree) for x in (dq.to(q_GSD.dtype), *whole)], plan))
        arrived = [sent.heads() for sent in returns]
        dq_HLD = torch.cat([parts[0] for parts in arrived], dim=1).flatten(0, 1)
        with_keys = [parts for parts, piece in zip(arrived, pieces, strict=True) if piece.last_of_keys]
        dk_KLD, dv_KLD = (
            torch.cat([parts[i] for parts in with_keys], dim=1).flatten(0, 1).unflatten(0, (ctx.kv_heads, -1)).sum(1)
            for i in (1, 2)
        )
        return dq_HLD, dk_KLD, dv_KLD, torch.cat(dsinks) if dsinks else None, None


def _of_piece(sinks: Tensor | None, piece: Piece) -> Tensor | None:
    return None if sinks is None else sinks[piece.queries]


def _copied(k: Tensor, v: Tensor, degree: int) -> list[Tensor]:
    copies = repeated_kv_heads(len(k), degree) // len(k)
    return [x.repeat_interleave(copies, dim=0) for x in (k, v)]


def _by_rank(x_HLD: Tensor, degree: int) -> Float[Tensor, "U G L D"]:
    return x_HLD.unflatten(0, (degree, -1))


def _for_ranks(x_GSD: Tensor, degree: int) -> Float[Tensor, "U G L D"]:
    return x_GSD.unflatten(1, (degree, -1)).transpose(0, 1)


class _Sent:
    """One message of several parts, for all ranks, on its way while others arrive."""

    def __init__(self, parts_UGLD: list[Tensor], plan: GatherPlan) -> None:
        # The sent memory must stay alive until the transfer has ended.
        self._shapes = [part.shape[1:] for part in parts_UGLD]
        self._sent = parts_UGLD[0].new_empty(len(parts_UGLD[0]), sum(map(math.prod, self._shapes)))
        for place, part in zip(self._parts(self._sent), parts_UGLD, strict=True):
            place.copy_(part)
        self._received = torch.empty_like(self._sent)
        self._work = dist.all_to_all_single(self._received, self._sent, group=plan.cp.ulysses_group, async_op=True)

    def heads(self) -> list[Float[Tensor, "U G L D"]]:
        """The parts that arrived, by the rank whose heads they are."""
        self._work.wait()
        return self._parts(self._received)

    def _parts(self, message: Tensor) -> list[Tensor]:
        places = message.split([math.prod(shape) for shape in self._shapes], dim=1)
        return [place.unflatten(1, shape) for place, shape in zip(places, self._shapes, strict=True)]

    def tokens(self) -> list[Float[Tensor, "G S D"]]:
        """The parts that arrived, each with the tokens of all ranks."""
        return [part.transpose(0, 1).flatten(1, 2) for part in self.heads()]

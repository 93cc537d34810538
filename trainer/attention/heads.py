# ruff: noqa: N803, N806 (shape suffixes)
"""The exchange of Ulysses: from a piece of the tokens with all heads to all tokens with some of the heads, and back.

A model's projections have ended when its attention is called, so the exchange cannot hide behind them without changing
the model. It can hide behind the kernel: ``overlapped_attention`` deals the heads in pieces, each with messages of its
own, and only the first piece's arrival and the last one's return are waited for with nothing to do.

Shapes: U ranks of the Ulysses axis, H query heads, K key heads, L tokens of a rank, S = U * L tokens of all ranks,
D head_dim, G heads of a message for each rank. A message has its receivers first: x_UGLD.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import several
from preshard.trainer.attention.kept import once
from preshard.trainer.attention.kernels import Kernel, Prepared
from preshard.trainer.attention.kernels.whole import accumulation_dtype
from preshard.trainer.attention.sinks import compute_rows, differentiate_rows, own_sinks


class _TokensToHeads(torch.autograd.Function):
    """All-to-all [U * G, L, D] -> [G, U * L, D]; its gradient takes the opposite way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, degree: int, group: dist.ProcessGroup) -> Tensor:
        ctx.degree, ctx.group = degree, group
        return _tokens_to_heads(x, degree, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _heads_to_tokens(grads[0], ctx.degree, ctx.group), None, None


class _HeadsToTokens(torch.autograd.Function):
    """All-to-all [G, U * L, D] -> [U * G, L, D]; its gradient takes the opposite way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, degree: int, group: dist.ProcessGroup) -> Tensor:
        ctx.degree, ctx.group = degree, group
        return _heads_to_tokens(x, degree, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _tokens_to_heads(grads[0], ctx.degree, ctx.group), None, None


def _tokens_to_heads(x: Tensor, degree: int, group: dist.ProcessGroup) -> Tensor:
    n_heads, n_tokens, head_dim = x.shape
    sent = x.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    by_rank = received.view(degree, n_heads // degree, n_tokens, head_dim)
    return by_rank.transpose(0, 1).reshape(n_heads // degree, degree * n_tokens, head_dim)


def _heads_to_tokens(x: Tensor, degree: int, group: dist.ProcessGroup) -> Tensor:
    n_heads, n_tokens, head_dim = x.shape
    sent = x.reshape(n_heads, degree, n_tokens // degree, head_dim).transpose(0, 1).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received.view(degree * n_heads, n_tokens // degree, head_dim)


def exchange_for_heads(
    x_HLD: Float[Tensor, "H L D"], degree: int, group: dist.ProcessGroup | None
) -> Float[Tensor, "H/U S D"]:
    """All tokens of the ranks in rank order, with this rank's heads only; one message to each rank."""
    if degree == 1 or group is None:
        return x_HLD
    x_GSD: Tensor = _TokensToHeads.apply(x_HLD, degree, group)
    return x_GSD


def repeated_kv_heads(num_kv_heads: int, degree: int) -> int:
    """Key heads that are sent, counting the copies: the fewest that divide evenly among the ranks."""
    return math.lcm(num_kv_heads, degree)


def scatter_heads(
    q_HLD: Float[Tensor, "H L D"],
    k_KLD: Float[Tensor, "K L D"],
    v_KLD: Float[Tensor, "K L D"],
    degree: int,
    group: dist.ProcessGroup | None,
) -> tuple[Float[Tensor, "H/U S D"], Float[Tensor, "K/U S D"], Float[Tensor, "K/U S D"]]:
    """All tokens of the axis in rank order, with this rank's heads only; one message to each rank.

    Where there are fewer key heads than ranks, or they do not divide, each is sent more than once. Query head h still
    reads key head ``h // (H / K)``, and the gradients of the copies are added (Jacobs et al. 2023, DeepSpeed Ulysses).
    Keys and values then have messages of their own: the copies of only one are in memory at a time.
    """
    if degree == 1 or group is None:
        return q_HLD, k_KLD, v_KLD
    copies = repeated_kv_heads(len(k_KLD), degree) // len(k_KLD)
    if copies > 1:
        q_GSD = exchange_for_heads(q_HLD, degree, group)
        k_GSD, v_GSD = (exchange_for_heads(x.repeat_interleave(copies, dim=0), degree, group) for x in (k_KLD, v_KLD))
        return q_GSD, k_GSD, v_GSD
    parts = [q_HLD, k_KLD, v_KLD]
    sizes = [len(part) // degree for part in parts]
    by_rank = torch.cat([part.unflatten(0, (degree, size)) for part, size in zip(parts, sizes, strict=True)], dim=1)
    # Copies, since kernels load what does not begin its memory more slowly, and the message can go.
    q_GSD, k_GSD, v_GSD = (x.clone() for x in exchange_for_heads(by_rank.flatten(0, 1), degree, group).split(sizes))
    return q_GSD, k_GSD, v_GSD


def gather_heads(
    out_GSD: Float[Tensor, "H/U S D"], degree: int, group: dist.ProcessGroup | None
) -> Float[Tensor, "H L D"]:
    """The opposite of ``exchange_for_heads`` and ``scatter_heads``: this rank's tokens, with all heads."""
    if degree == 1 or group is None:
        return out_GSD
    out: Tensor = _HeadsToTokens.apply(out_GSD, degree, group)
    return out


PIECES = 2
"""Each piece is one more call of the kernel, with the same mask, at whose end most of a device waits for its longest
row. With two, half of the exchange can hide."""


@dataclass(frozen=True, kw_only=True)
class OverlapPlan:
    """What one batch needs besides the values."""

    degree: int
    rank: int
    group: dist.ProcessGroup
    kernel: Kernel
    prepared: Prepared


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some of a rank's heads: query heads, and the key heads that they read."""

    queries: slice
    keys: slice
    first_of_keys: bool
    last_of_keys: bool


def overlapped_attention(
    q_HLD: Float[Tensor, "H L D"],
    k_KLD: Float[Tensor, "K L D"],
    v_KLD: Float[Tensor, "K L D"],
    plan: OverlapPlan,
    *,
    sinks: Float[Tensor, "H"] | None = None,
) -> Float[Tensor, "H L D"]:
    """As ``ulysses_attention``, with the same bytes sent in more messages. Exact, differentiable and collective.

    Raises:
        ConfigError: a rank has a single query head, so there is nothing to overlap with.
    """
    out: Tensor = _Overlapped.apply(q_HLD, k_KLD, v_KLD, own_sinks(sinks, plan.degree, plan.rank), plan)
    return out


def list_pieces(num_heads: int, num_kv_heads: int, degree: int) -> list[Piece]:
    """Pieces of a rank's heads: by whole key heads where it has several, else by query heads that share one.

    Raises:
        ConfigError: a rank has a single query head.
    """
    heads, kv_heads = num_heads // degree, repeated_kv_heads(num_kv_heads, degree) // degree
    if heads < PIECES:
        raise ConfigError(
            f"--overlap computes a rank's heads in {PIECES} pieces; {several(num_heads, 'head')} on "
            f"{several(degree, 'rank')} are {heads} on each: take a Ulysses degree of at most "
            f"{num_heads // PIECES}, or leave the option out"
        )
    shared = heads // kv_heads
    if kv_heads > 1:
        cut = -(-kv_heads // PIECES)
        parts = [slice(0, cut), slice(cut, kv_heads)]
        return [
            Piece(queries=slice(p.start * shared, p.stop * shared), keys=p, first_of_keys=True, last_of_keys=True)
            for p in parts
        ]
    cut, only = -(-heads // PIECES), slice(0, 1)
    return [
        Piece(queries=slice(0, cut), keys=only, first_of_keys=True, last_of_keys=False),
        Piece(queries=slice(cut, heads), keys=only, first_of_keys=False, last_of_keys=True),
    ]


class _Overlapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, plan: OverlapPlan) -> Tensor:
        pieces = list_pieces(len(q), len(k), plan.degree)
        ctx.plan, ctx.pieces, ctx.kv_heads, ctx.calls = plan, pieces, len(k), []
        q_UGLD, k_UGLD, v_UGLD = (_by_rank(x, plan.degree) for x in (q, *_copied(k, v, plan.degree)))
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
            out_GSD, kept, call = once(partial(compute_rows, plan.kernel, plan.prepared, q_GSD, *held, own))
            ctx.calls.append((call, len(kept)))
            saved += [q_GSD, *held, *kept]
            returns.append(_Sent([_for_ranks(out_GSD, plan.degree)], plan))
        ctx.save_for_backward(sinks, *saved)
        return torch.cat([sent.heads()[0] for sent in returns], dim=1).flatten(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan: OverlapPlan = ctx.plan
        pieces: list[Piece] = ctx.pieces
        dout_UGLD = _by_rank(grads[0], plan.degree)
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
            returns.append(_Sent([_for_ranks(x, plan.degree) for x in (dq.to(q_GSD.dtype), *whole)], plan))
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

    def __init__(self, parts_UGLD: list[Tensor], plan: OverlapPlan) -> None:
        # The sent memory must stay alive until the transfer has ended.
        self._sent = torch.cat(parts_UGLD, dim=1).contiguous()
        self._received = torch.empty_like(self._sent)
        self._sizes = [part.shape[1] for part in parts_UGLD]
        self._work = dist.all_to_all_single(self._received, self._sent, group=plan.group, async_op=True)

    def heads(self) -> list[Float[Tensor, "U G L D"]]:
        """What arrived, by the rank whose heads they are."""
        self._work.wait()
        return list(self._received.split(self._sizes, dim=1))

    def tokens(self) -> list[Float[Tensor, "G S D"]]:
        """What arrived, each part with the tokens of all ranks."""
        return [part.transpose(0, 1).flatten(1, 2) for part in self.heads()]

# ruff: noqa: N803 (shape suffixes)
"""Attention that gathers keys and values along the ring axis by one collective, then runs one kernel call.

Gradients of the keys are sent back. Ulysses over all ranks of a pack is the case in which nothing is left to gather.

Shapes: R ring ranks, H query heads, K key heads, L tokens of a slice, T gathered tokens, D head_dim of queries and
keys, V of values, N = K * (D + V). A message has the tokens first, each with its keys and then its values: x_LN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from preshard.schemas.errors import ConfigError, LayoutError
from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.schemas.mask import needed_blocks
from preshard.trainer.attention.bind import Attend, Exchange, Options
from preshard.trainer.attention.context_parallel import ContextParallel, all_gather_single
from preshard.trainer.attention.heads import gather_heads, scatter_heads
from preshard.trainer.attention.kept import once
from preshard.trainer.attention.kernels import Kernel, Prepared
from preshard.trainer.attention.kernels.whole import accumulation_dtype, identity
from preshard.trainer.attention.latent import Gathered, choose_parts
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.pieces import PIECES, repeated_kv_heads
from preshard.trainer.attention.sinks import compute_rows, differentiate_rows, own_sinks
from preshard.trainer.device import to_device

KeysAndValues = tuple[Tensor, Tensor]

Widths = tuple[int, int]
"""Width of a head's keys, and of its values."""

Arrival = Callable[[], KeysAndValues]
"""Waits for what is on its way, and gives it. Called once, and then let go: it holds what was sent."""


@dataclass(frozen=True, kw_only=True)
class GatherPlan:
    """Plan of one batch: which keys arrive, and their tiles with this rank's queries.

    ``head_stride`` is the number of key heads that arrive at a time; 0 is all. With ``overlap`` as many travel while
    they are attended to, and 0 is half of them.
    """

    cp: ContextParallel
    kernel: Kernel
    exchange: KeyExchange | NoExchange
    gathered: Prepared
    head_stride: int = 0
    overlap: bool = False


def plan_gather(
    layout: TokenLayout,
    mask: MaskTensors,
    cp: ContextParallel,
    *,
    exchange: Exchange = "needed",
    head_stride: int = 0,
    overlap: bool = False,
    kernel: Kernel,
) -> GatherPlan:
    """Decides what is sent to whom, and lists the tiles.

    Args:
        exchange: ``all`` gathers every key; ``needed`` only those in blocks that a rank's queries see.
        head_stride: key heads of a rank that are gathered at a time, at most all that it has; 0 is all. A ring of one
            rank gathers nothing and takes all.
        overlap: gather the next of them while some are attended to.

    Raises:
        LayoutError: ``layout.needs`` does not cover the mask's tokens in blocks of ``layout.block_size``.
    """
    keys = plan_exchange(exchange, layout, mask, cp)
    queries = mask.at(slice_positions(layout.runs, cp.ring_rank))
    tiles = kernel.prepare(queries, mask.at(keys.positions))
    alone = cp.ring_group is None
    stride, overlap = 0 if alone else head_stride, overlap and not alone
    return GatherPlan(cp=cp, kernel=kernel, exchange=keys, gathered=tiles, head_stride=stride, overlap=overlap)


def gather_attention(
    q_HLD: Float[Tensor, "H L D"],
    k_KLD: Float[Tensor, "K L D"],
    v_KLV: Float[Tensor, "K L V"],
    plan: GatherPlan,
    *,
    sinks: Float[Tensor, "H"] | None = None,
    up: Float[Tensor, "C K X"] | None = None,
) -> Float[Tensor, "H L V"]:
    """Exact attention of this rank's queries over the whole pack, differentiable.

    Gathering all keys is the context parallelism of Llama 3 (Grattafiori et al. 2024, section 3.3.2). The gathered keys
    are dropped after the forward and gathered again in the backward, so what is kept between the two does not grow with
    the number of ranks. With a Ulysses axis, heads are dealt along it first. With ``plan.head_stride`` only the keys of
    some heads are there at a time, and each turn has messages and kernel calls of its own. With ``plan.overlap`` the
    keys of the next turn travel meanwhile, and so do gradients of the one before. Latents, where ``up`` is given and
    they are less than what it makes of them, are gathered once for all turns, and expanded in each.
    """
    cp = plan.cp
    k, v, up = choose_parts(q_HLD, k_KLD, v_KLV, up, cp)
    q, k, v = scatter_heads(q_HLD, k, v, cp.ulysses_degree, cp.ulysses_group)
    out: Tensor = _Gather.apply(q, k, v, own_sinks(sinks, cp.ulysses_degree, cp.ulysses_rank), up, plan)
    return gather_heads(out, cp.ulysses_degree, cp.ulysses_group)


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """Key heads that are gathered together, and the query heads that read them."""

    keys: slice
    queries: slice


def _list_turns(num_heads: int, num_kv_heads: int, plan: GatherPlan) -> list[_Turn]:
    shared, step = num_heads // num_kv_heads, plan.head_stride or -(-num_kv_heads // (PIECES if plan.overlap else 1))
    ends = [(first, min(first + step, num_kv_heads)) for first in range(0, num_kv_heads, step)]
    return [_Turn(keys=slice(a, b), queries=slice(a * shared, b * shared)) for a, b in ends]


@dataclass(frozen=True, kw_only=True)
class _GatherCall:
    """Backward pass of a turn. It holds no tensor.

    ``saved`` has, for each tensor that the kernel saved, None, or the size and stride of the turn's output: that one is
    copied from the whole output again, which would otherwise be there twice.
    """

    backward: Any
    saved: tuple[tuple[torch.Size, tuple[int, ...]] | None, ...]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, up: Tensor | None, plan: GatherPlan
    ) -> Tensor:
        turns = _list_turns(len(q), len(k) if up is None else up.shape[1], plan)

        def compute() -> tuple[Tensor, tuple[Tensor, ...], list[_GatherCall]]:
            out: Tensor | None = None
            kept: list[Tensor] = []
            calls = []
            for turn, keys in _arriving(plan, turns, k, v, _latents(plan, q, k, v, up)):
                given = (q[turn.queries], *keys, _own(sinks, turn))
                part, saved, backward = compute_rows(plan.kernel, plan.gathered, *given)
                del given, keys  # before the next turn's keys arrive
                copied = [len(turns) > 1 and identity(x) == identity(part) for x in saved]
                places = tuple(
                    (x.size(), x.stride()) if of_out else None for x, of_out in zip(saved, copied, strict=True)
                )
                calls.append(_GatherCall(backward=backward, saved=places))
                kept += [x for x, of_out in zip(saved, copied, strict=True) if not of_out]
                out = _placed(out, turn.queries, part, like=q)
            assert out is not None
            return out, tuple(kept), calls

        out, saved, ctx.calls = once(compute)
        ctx.plan, ctx.turns = plan, turns
        ctx.save_for_backward(q, k, v, sinks, up, out, *saved)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, up, out, *saved = ctx.saved_tensors
        plan: GatherPlan = ctx.plan
        latents = _latents(plan, q, k, v, up, with_up=ctx.needs_input_grad[4])
        kept, dsinks = iter(saved), []
        whole_dq = whole_dk = whole_dv = None
        returning: deque[tuple[slice, Arrival]] = deque()
        calls = iter(ctx.calls)
        for turn, keys in _arriving(plan, ctx.turns, k, v, latents):
            call = next(calls)
            again = tuple(next(kept) if place is None else _copied(out[turn.queries], *place) for place in call.saved)
            inputs = (q[turn.queries], *keys, _own(sinks, turn))
            dq, dk, dv, dsink = differentiate_rows(grads[0][turn.queries], inputs, again, call.backward)
            del inputs, again, keys  # what was gathered, and later its gradients, are the largest tensors of a layer
            whole_dq = _placed(whole_dq, turn.queries, dq, like=q)
            dsinks += [] if dsink is None else [dsink.to(sinks.dtype)]
            del dq
            if latents is not None:
                latents.pull_back(turn, dk, dv)
                del dk, dv
                continue
            if isinstance(plan.exchange, NoExchange):
                whole_dk, whole_dv = dk.to(k.dtype), dv.to(v.dtype)
                continue
            sent = _message(dk, dv, accumulation_dtype(dk.dtype))
            del dk, dv
            returning.append((turn.keys, plan.exchange.give_back(sent, _widths(k, v), async_op=plan.overlap)))
            del sent
            while len(returning) > (plan.overlap and turn is not ctx.turns[-1]):
                heads, arrive = returning.popleft()
                dk, dv = arrive()
                whole_dk, whole_dv = _placed(whole_dk, heads, dk, like=k), _placed(whole_dv, heads, dv, like=v)
                del arrive, dk, dv
        dsink = torch.cat(dsinks) if dsinks else None
        if latents is None:
            return whole_dq, whole_dk, whole_dv, dsink, None, None
        dk, dv = _own_gradients(plan.exchange, latents.message, _widths(k, v))
        return whole_dq, dk.to(k.dtype), dv.to(v.dtype), dsink, latents.of_up, None


def _latents(
    plan: GatherPlan, q: Tensor, k: Tensor, v: Tensor, up: Tensor | None, *, with_up: bool = False
) -> Gathered | None:
    """Gathers ``k`` and ``v`` if they are latents and what heads share."""
    return None if up is None else Gathered(plan.exchange.gather(k, v)(), up, q.shape[-1], with_up=with_up)


def _own_gradients(exchange: KeyExchange | NoExchange, sent_TN: Tensor, widths: Widths) -> KeysAndValues:
    return _opened(sent_TN, widths) if isinstance(exchange, NoExchange) else exchange.give_back(sent_TN, widths)()


def _arriving(
    plan: GatherPlan, turns: list[_Turn], k: Tensor, v: Tensor, latents: Gathered | None
) -> Iterator[tuple[_Turn, KeysAndValues]]:
    """Each turn with its keys. If they overlap, the next turn's are on their way by then."""
    if latents is not None:
        yield from latents.expanded(turns)
        return
    coming: deque[Arrival] = deque()
    for number, turn in enumerate(turns):
        for next_one in turns[number + len(coming) : number + 1 + plan.overlap]:
            coming.append(plan.exchange.gather(k[next_one.keys], v[next_one.keys], async_op=plan.overlap))
        yield turn, coming.popleft()()


def _own(sinks: Tensor | None, turn: _Turn) -> Tensor | None:
    return None if sinks is None else sinks[turn.queries]


def _placed(whole: Tensor | None, heads: slice, part: Tensor, *, like: Tensor) -> Tensor:
    """The whole with a turn's part in its place, in the heads and dtype of ``like``; the part itself if it is whole."""
    if len(part) == len(like):
        return part.to(like.dtype)
    if whole is None:
        alike = part.shape[1:] == like.shape[1:]  # or the output's width is that of values
        whole = torch.empty_like(like) if alike else like.new_empty(len(like), *part.shape[1:])
    whole[heads] = part
    return whole


def _copied(x: Tensor, size: torch.Size, stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(size, stride, dtype=x.dtype, device=x.device).copy_(x.view(size))


class KeyExchange(Protocol):
    """One way to gather. Tokens arrive in rank order, and within a rank in slice order."""

    @property
    def positions(self) -> Int64[np.ndarray, "T"]:
        """Natural positions of the gathered tokens."""
        ...

    def gather(
        self, k_KLD: Float[Tensor, "K L D"], v_KLV: Float[Tensor, "K L V"], *, async_op: bool = False
    ) -> Arrival:
        """The keys ``[K, T, D]`` and values ``[K, T, V]`` that this rank gets from all ranks."""
        ...

    def give_back(self, sent_TN: Float[Tensor, "T N"], widths: Widths, *, async_op: bool = False) -> Arrival:
        """All ranks' gradients of this rank's keys and values, added in rank order, so that they never differ."""
        ...


def plan_exchange(
    exchange: Exchange, layout: TokenLayout, mask: MaskTensors, cp: ContextParallel
) -> KeyExchange | NoExchange:
    """Plans which tokens go where. It follows from the layout alone, so the ranks agree without a message.

    Raises:
        LayoutError: ``layout.needs`` does not cover the mask's tokens in blocks of ``layout.block_size``.
    """
    slices = [slice_positions(layout.runs, rank) for rank in range(cp.ring_degree)]
    if cp.ring_group is None:
        return NoExchange(positions=slices[cp.ring_rank])
    if exchange == "all":
        return _AllExchange(positions=np.concatenate(slices), degree=cp.ring_degree, group=cp.ring_group)
    block_size, seq_len = layout.block_size, len(mask)
    if mask.window is None and layout.needs.shape[1] != -(-seq_len // block_size):
        raise LayoutError(
            f"layout {layout.name} lists {layout.needs.shape[1]} blocks of needed keys; {seq_len} tokens make "
            f"{-(-seq_len // block_size)} blocks of its block_size {block_size}: use the block_size it was packed with"
        )
    needs = list_needs(layout, mask)
    mine = slices[cp.ring_rank]
    sent = [np.flatnonzero(needs[rank][mine // block_size]) for rank in range(cp.ring_degree)]
    received = [held[needs[cp.ring_rank][held // block_size]] for held in slices]
    return _NeededExchange(
        positions=np.concatenate(received),
        sent=tuple(to_device(torch.from_numpy(index), mask.device) for index in sent),
        received_sizes=tuple(map(len, received)),
        slice_len=len(mine),
        group=cp.ring_group,
    )


def list_needs(layout: TokenLayout, mask: MaskTensors) -> Bool[np.ndarray, "ring blocks"]:
    """Blocks as in ``layout.needs``, but under the mask as it is: with its window, if it has one."""
    if mask.window is None:
        return layout.needs
    return needed_blocks(mask.host, layout.runs, layout.ring_degree, layout.block_size, window=mask.window)


@dataclass(frozen=True, kw_only=True)
class NoExchange:
    """A ring of one rank, which holds every key already."""

    positions: Int64[np.ndarray, "T"]

    def gather(self, k_KLD: Tensor, v_KLV: Tensor, *, async_op: bool = False) -> Arrival:  # noqa: ARG002
        return lambda: (k_KLD, v_KLV)


@dataclass(frozen=True, kw_only=True)
class _AllExchange:
    """Every rank gets every token: an all-gather on the way there, an all-to-all on the way back."""

    positions: Int64[np.ndarray, "T"]
    degree: int
    group: dist.ProcessGroup

    def gather(self, k_KLD: Tensor, v_KLV: Tensor, *, async_op: bool = False) -> Arrival:
        sent = _message(k_KLD, v_KLV)
        received = sent.new_empty(self.degree * len(sent), *sent.shape[1:])
        work = all_gather_single(received, sent, self.group, async_op=async_op)
        return _arrival(work, sent, partial(_packed, received, _widths(k_KLD, v_KLV)))

    def give_back(self, sent_TN: Tensor, widths: Widths, *, async_op: bool = False) -> Arrival:
        received = torch.empty_like(sent_TN)
        work = dist.all_to_all_single(received, sent_TN, group=self.group, async_op=async_op)

        def add() -> KeysAndValues:
            first, *others = received.chunk(self.degree)
            for other in others:
                first += other
            return _opened(first, widths)

        return _arrival(work, sent_TN, add)


@dataclass(frozen=True, kw_only=True)
class _NeededExchange:
    """A rank gets the tokens of the key blocks that its queries see, including its own.

    ``sent[r]`` are this rank's tokens for rank r, and ``received_sizes[r]`` is the number of tokens from rank r.
    """

    positions: Int64[np.ndarray, "T"]
    sent: tuple[Int64[Tensor, "_"], ...]
    received_sizes: tuple[int, ...]
    slice_len: int
    group: dist.ProcessGroup

    def gather(self, k_KLD: Tensor, v_KLV: Tensor, *, async_op: bool = False) -> Arrival:
        tokens = _message(k_KLD, v_KLV)
        sent = tokens.index_select(0, torch.cat(self.sent))
        received = tokens.new_empty(sum(self.received_sizes), *tokens.shape[1:])
        sizes = list(self.received_sizes), self._sent_sizes
        work = dist.all_to_all_single(received, sent, *sizes, group=self.group, async_op=async_op)
        return _arrival(work, sent, partial(_packed, received, _widths(k_KLD, v_KLV)))

    def give_back(self, sent_TN: Tensor, widths: Widths, *, async_op: bool = False) -> Arrival:
        received = sent_TN.new_empty(sum(self._sent_sizes), *sent_TN.shape[1:])
        sizes = self._sent_sizes, list(self.received_sizes)
        work = dist.all_to_all_single(received, sent_TN, *sizes, group=self.group, async_op=async_op)

        def add() -> KeysAndValues:
            total = received.new_zeros(self.slice_len, *received.shape[1:])
            for index, part in zip(self.sent, received.split(self._sent_sizes), strict=True):
                # A rank gets each token at most once, so additions happen in rank order.
                total.index_add_(0, index, part)
            return _opened(total, widths)

        return _arrival(work, sent_TN, add)

    @property
    def _sent_sizes(self) -> list[int]:
        return [len(index) for index in self.sent]


def _arrival(work: dist.Work | None, sent: Tensor, result: Arrival) -> Arrival:
    def arrive(_sent: Tensor = sent) -> KeysAndValues:  # the sent memory must stay alive until the transfer has ended
        if work is not None:
            work.wait()
        return result()

    return arrive


def _message(k_KLD: Tensor, v_KLV: Tensor, dtype: torch.dtype | None = None) -> Float[Tensor, "L N"]:
    """Keys and values in one message, in their dtype or another."""
    widths = _widths(k_KLD, v_KLV)
    message = k_KLD.new_empty(k_KLD.shape[1], len(k_KLD) * sum(widths), dtype=dtype or k_KLD.dtype)
    for place, part in zip(_opened(message, widths), (k_KLD, v_KLV), strict=True):
        place.copy_(part)
    return message


def _widths(k_KLD: Tensor, v_KLV: Tensor) -> Widths:
    return k_KLD.shape[-1], v_KLV.shape[-1]


def _opened(x_LN: Tensor, widths: Widths) -> KeysAndValues:
    """Views of a message's keys and values, heads first."""
    n_heads = x_LN.shape[1] // sum(widths)
    keys, values = x_LN.split([n_heads * width for width in widths], dim=1)
    return keys.unflatten(1, (n_heads, -1)).transpose(0, 1), values.unflatten(1, (n_heads, -1)).transpose(0, 1)


def _packed(x_TN: Tensor, widths: Widths) -> KeysAndValues:
    """Keys and values copied, as kernels load them (see ``preshard.trainer.attention.kernels.flex.loadable``)."""
    keys, values = _opened(x_TN, widths)
    return keys.contiguous(), values.contiguous()


def bind_attention(layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, options: Options) -> Attend:
    """The kind ``gather``."""
    how: Any = {"exchange": options.exchange, "head_stride": options.head_stride, "overlap": options.overlap}
    return partial(gather_attention, plan=plan_gather(layout, mask, cp, kernel=options.kernel_for(mask), **how))


def check_turns(
    num_heads: int,  # noqa: ARG001 (key heads are gathered)
    num_kv_heads: int,
    *,
    ulysses_degree: int,
    ring_degree: int,
    overlap: bool,
    head_stride: int,
) -> None:
    """Checks that a rank has key heads enough to gather some at a time, and some while others are attended to.

    Raises:
        ConfigError: it has not, or there are no keys to gather; says what would work.
    """
    own = repeated_kv_heads(num_kv_heads, ulysses_degree) // ulysses_degree
    if overlap and ring_degree == 1 < ulysses_degree:
        raise ConfigError("--overlap with attention gather needs keys to gather, and ring is 1: use attention ulysses")
    if overlap and ring_degree > 1 and own < max(PIECES, head_stride + 1):
        raise ConfigError(
            f"--overlap gathers some key heads while others are attended to; {num_kv_heads} key heads over "
            f"ulysses_degree {ulysses_degree} are {own} on each rank, and --head-stride is {head_stride}: lower "
            "ulysses_degree or --head-stride, or omit --overlap"
        )
    if head_stride > own:
        raise ConfigError(
            f"--head-stride is {head_stride}; {num_kv_heads} key heads over ulysses_degree {ulysses_degree} are {own} "
            f"on each rank: take at most {own}, or omit the option"
        )

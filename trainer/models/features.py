"""Brings pooled vision features from the rank that made them to the rank that holds their tokens.

A rank encodes its share of the crops, and holds tokens that other ranks' crops fill. Two ways lead from one to the
other; both are differentiable and give the same result:

* ``route``: every feature goes to the one rank that holds its token. Who sends what to whom follows from the batch, so
  the ranks agree without a message. Each receives the rows of its own tokens and nothing else.
* ``gather``: every rank gets every feature, padded to the largest rank's number, and takes its own. This is what Molmo2
  does with the same boundaries; it moves about CP size times as much.

All ranks run the same collectives, whatever they hold; they skip them only when the whole pack has no crop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.trainer.attention.context_parallel import ContextParallel, all_gather_single
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.device import to_device

Way = Literal["route", "gather"]
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True, kw_only=True)
class FeatureExchange:
    """Exchange of one pack's features, seen from one rank. Calling it sends them.

    Attributes:
        way: ``route`` or ``gather``.
        slots: the local token that each received feature fills, by ascending pooled row of the pack. Rows are numbered
            as units are stored, which need not be the order of tokens.
        send_order: this rank's own features in the order of sending: by receiving rank, then by pooled row.
        send_sizes: number of features for each rank.
        receive_sizes: number of features from each rank.
        pool_edges: rank r makes the pooled rows ``pool_edges[r]:pool_edges[r + 1]``.
        places: where each received feature lies among the padded parts of all ranks, of the way ``gather``.
        group: the ranks of the pack; None for a single rank.
    """

    way: Way
    slots: Int64[Tensor, "filled"]
    send_order: Int64[Tensor, "made"]
    send_sizes: list[int]
    receive_sizes: list[int]
    pool_edges: list[int]
    places: Int64[Tensor, "filled"]
    group: dist.ProcessGroup | None

    def __call__(self, features: Float[Tensor, "made hidden"]) -> Float[Tensor, "filled hidden"]:
        """The features that fill this rank's tokens, by ascending pooled row, from those that this rank made."""
        if self.group is None or self.pool_edges[-1] == 0:
            return features
        if self.way == "route":
            return route_features(features, self)
        return gather_features(features, self)


def bind_features(batch: RankBatch, cp: ContextParallel, way: str = "route") -> FeatureExchange:
    """Plans a pack's exchange; index arrays go to the device of ``batch.tokens``.

    Raises:
        ConfigError: ``way`` is not one of ``WAYS``.
    """
    if way not in WAYS:
        raise ConfigError(f"features is {way!r}; take one of {', '.join(WAYS)}")
    holder, place = token_places(batch.layout, batch.seq_len, cp.ulysses_degree)
    filled = batch.pool_positions.numpy()
    receivers, edges = holder[filled], batch.pool_edges.numpy()
    mine = np.flatnonzero(receivers == cp.cp_rank)
    made = receivers[edges[cp.cp_rank] : edges[cp.cp_rank + 1]]
    device = batch.tokens.device
    return FeatureExchange(
        way="route" if way == "route" else "gather",
        slots=to_device(torch.from_numpy(place[filled[mine]]), device),
        send_order=to_device(torch.from_numpy(np.argsort(made, kind="stable")), device),
        send_sizes=np.bincount(made, minlength=cp.cp_size).tolist(),
        receive_sizes=np.diff(np.searchsorted(mine, edges)).tolist(),
        pool_edges=edges.tolist(),
        places=to_device(torch.from_numpy(_places(mine, edges)), device),
        group=cp.cp_group,
    )


def _places(rows: Int64[np.ndarray, "rows"], edges: Int64[np.ndarray, "cp_plus_1"]) -> Int64[np.ndarray, "rows"]:
    """Places of pooled rows among parts of equal length, one part per rank."""
    maker = np.searchsorted(edges, rows, side="right") - 1
    return maker * np.diff(edges).max() + rows - edges[maker]


def token_places(
    layout: TokenLayout, seq_len: int, ulysses_degree: int
) -> tuple[Int64[np.ndarray, "seq"], Int64[np.ndarray, "seq"]]:
    """The CP rank that holds each token of a pack, and the token's index among that rank's local tokens."""
    holder, place = np.empty(seq_len, np.int64), np.empty(seq_len, np.int64)
    for ring_rank in range(layout.ring_degree):
        positions = slice_positions(layout.runs, ring_rank)
        piece, at = np.divmod(np.arange(len(positions)), len(positions) // ulysses_degree)
        holder[positions], place[positions] = ring_rank * ulysses_degree + piece, at
    return holder, place


def route_features(features: Float[Tensor, "made hidden"], exchange: FeatureExchange) -> Float[Tensor, "filled hidden"]:
    """Sends every feature to the rank of its token by one all-to-all; gradients come back by the reverse.

    Ranks make ascending ranges of rows and send them in order, so what arrives is in the order of ``slots`` already.
    """
    sent = features[exchange.send_order]
    received: Tensor = _AllToAll.apply(sent, exchange.send_sizes, exchange.receive_sizes, exchange.group)
    return received


def gather_features(
    features: Float[Tensor, "made hidden"], exchange: FeatureExchange
) -> Float[Tensor, "filled hidden"]:
    """Sends every feature to every rank by one all-gather of equal, padded parts, then picks this rank's rows."""
    most = int(max(np.diff(exchange.pool_edges)))
    padded = torch.cat([features, features.new_zeros(most - len(features), features.shape[1])])
    parts: Tensor = _AllGather.apply(padded, exchange.group)
    return parts[exchange.places]


class _AllToAll(Function):
    """Sends rows to ranks in uneven numbers; the gradient takes the opposite way."""

    @staticmethod
    def forward(ctx: Any, sent: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sizes, ctx.group = (send, receive), group
        return _all_to_all(sent, send, receive, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        send, receive = ctx.sizes
        return _all_to_all(grad, receive, send, ctx.group), None, None, None


class _AllGather(Function):
    """Joins equal parts of all ranks, in rank order; a part's gradient is the sum of all ranks' gradients for it."""

    @staticmethod
    def forward(ctx: Any, part: Float[Tensor, "part hidden"], group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = part.new_empty(dist.get_world_size(group) * len(part), *part.shape[1:])
        all_gather_single(parts, part.contiguous(), group)
        return parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ranks = dist.get_world_size(ctx.group)
        sizes = [len(grad) // ranks] * ranks
        first, *others = _all_to_all(grad, sizes, sizes, ctx.group).chunk(ranks)
        total = first.clone()
        for other in others:  # in rank order; a reduction would choose its own order
            total += other
        return total, None


def _all_to_all(sent: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
    received = sent.new_empty(sum(receive), *sent.shape[1:])
    dist.all_to_all_single(received, sent.contiguous(), receive, send, group=group)
    return received

# ruff: noqa: N803 (shape suffixes)
"""Gathers keys and values along the ring axis, all or only those needed, and sends their gradients back.

Shapes: R ring ranks, K key heads, L tokens of a slice, T gathered tokens, D head_dim. A message has the tokens first,
each with its key and its value: x_L2KD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor

from preshard.schemas.errors import LayoutError
from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.distributed.collectives import all_gather_single
from preshard.trainer.distributed.mesh import ContextParallel

Exchange = Literal["all", "needed"]
KeysAndValues = tuple[Tensor, Tensor]


class KeyExchange(Protocol):
    """One way to gather. Tokens arrive in rank order, and within a rank in slice order."""

    @property
    def positions(self) -> Int64[np.ndarray, "T"]:
        """Natural positions of the gathered tokens."""
        ...

    def gather(self, k_KLD: Float[Tensor, "K L D"], v_KLD: Float[Tensor, "K L D"]) -> KeysAndValues:
        """The keys and values that this rank gets from all ranks, ``[K, T, D]``."""
        ...

    def give_back(self, dk_KTD: Float[Tensor, "K T D"], dv_KTD: Float[Tensor, "K T D"]) -> KeysAndValues:
        """``[K, L, D]``: all ranks' gradients of this rank's tokens, added in rank order, so that they never differ."""
        ...


def plan_exchange(exchange: Exchange, layout: TokenLayout, mask: MaskTensors, cp: ContextParallel) -> KeyExchange:
    """Which tokens go where. It follows from the layout alone, so the ranks agree without a message.

    Raises:
        LayoutError: ``layout.needs`` does not cover the mask's tokens in blocks of ``layout.block_size``.
    """
    slices = [slice_positions(layout.runs, rank) for rank in range(cp.ring_degree)]
    if cp.ring_group is None:
        return NoExchange(positions=slices[cp.ring_rank])
    if exchange == "all":
        return _AllExchange(positions=np.concatenate(slices), degree=cp.ring_degree, group=cp.ring_group)
    block_size, seq_len = layout.block_size, len(mask)
    if layout.needs.shape[1] != -(-seq_len // block_size):
        raise LayoutError(
            f"layout {layout.name} lists {layout.needs.shape[1]} blocks of needed keys; {seq_len} tokens make "
            f"{-(-seq_len // block_size)} blocks of its block_size {block_size}: use the block_size it was packed with"
        )
    mine = slices[cp.ring_rank]
    sent = [np.flatnonzero(layout.needs[rank][mine // block_size]) for rank in range(cp.ring_degree)]
    received = [held[layout.needs[cp.ring_rank][held // block_size]] for held in slices]
    return _NeededExchange(
        positions=np.concatenate(received),
        sent=tuple(torch.from_numpy(index).to(mask.device, non_blocking=True) for index in sent),
        received_sizes=tuple(map(len, received)),
        slice_len=len(mine),
        group=cp.ring_group,
    )


@dataclass(frozen=True, kw_only=True)
class NoExchange:
    """A ring of one rank, which holds every key already."""

    positions: Int64[np.ndarray, "T"]

    def gather(self, k_KLD: Tensor, v_KLD: Tensor) -> KeysAndValues:
        return k_KLD, v_KLD

    def give_back(self, dk_KTD: Tensor, dv_KTD: Tensor) -> KeysAndValues:
        return dk_KTD, dv_KTD


@dataclass(frozen=True, kw_only=True)
class _AllExchange:
    """Every rank gets every token: an all-gather on the way there, an all-to-all on the way back."""

    positions: Int64[np.ndarray, "T"]
    degree: int
    group: dist.ProcessGroup

    def gather(self, k_KLD: Tensor, v_KLD: Tensor) -> KeysAndValues:
        sent = _message(k_KLD, v_KLD)
        received = sent.new_empty(self.degree * len(sent), *sent.shape[1:])
        all_gather_single(received, sent, self.group)
        return _opened(received)

    def give_back(self, dk_KTD: Tensor, dv_KTD: Tensor) -> KeysAndValues:
        sent = _message(dk_KTD, dv_KTD)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        first, *others = received.chunk(self.degree)
        for other in others:
            first += other
        return _opened(first)


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

    def gather(self, k_KLD: Tensor, v_KLD: Tensor) -> KeysAndValues:
        tokens = _message(k_KLD, v_KLD)
        sent = tokens.index_select(0, torch.cat(self.sent))
        received = tokens.new_empty(sum(self.received_sizes), *tokens.shape[1:])
        dist.all_to_all_single(received, sent, list(self.received_sizes), self._sent_sizes, group=self.group)
        return _opened(received)

    def give_back(self, dk_KTD: Tensor, dv_KTD: Tensor) -> KeysAndValues:
        sent = _message(dk_KTD, dv_KTD)
        received = sent.new_empty(sum(self._sent_sizes), *sent.shape[1:])
        dist.all_to_all_single(received, sent, self._sent_sizes, list(self.received_sizes), group=self.group)
        total = sent.new_zeros(self.slice_len, *sent.shape[1:])
        for index, part in zip(self.sent, received.split(self._sent_sizes), strict=True):
            # A rank gets each token at most once, so additions happen in rank order.
            total.index_add_(0, index, part)
        return _opened(total)

    @property
    def _sent_sizes(self) -> list[int]:
        return [len(index) for index in self.sent]


def _message(k_KLD: Tensor, v_KLD: Tensor) -> Float[Tensor, "L 2 K D"]:
    return torch.stack([k_KLD.transpose(0, 1), v_KLD.transpose(0, 1)], dim=1)


def _opened(x_L2KD: Tensor) -> KeysAndValues:
    return x_L2KD[:, 0].transpose(0, 1), x_L2KD[:, 1].transpose(0, 1)

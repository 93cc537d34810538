# ruff: noqa: N803 (shape suffixes)
"""Attention over all the keys that some rows see, in one call, so that its backward can be the kernel's own.

A kernel that torch differentiates by itself (FlexAttention) keeps a graph between forward and backward. That graph must
not keep the gathered keys, which are gathered again for the backward, nor anything past an outer
``torch.utils.checkpoint`` or an offloading hook. So it keeps no tensor at all: what it would save is handed to the
caller, who saves it as its own, and q, k and v are handed in again.

Shapes: H query heads, K key heads, Q queries, T keys, D head_dim of queries and keys, V of values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from preshard.trainer.attention.kernels import Gradients, Inputs, Whole


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which partial results are added: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def whole_by_autograd(
    attention: Callable[[Tensor, Tensor, Tensor], Float[Tensor, "H Q V"]],
    q_HQD: Float[Tensor, "H Q D"],
    k_KTD: Float[Tensor, "K T D"],
    v_KTV: Float[Tensor, "K T V"],
) -> Whole:
    """Runs a function that torch can differentiate, to be differentiated once. It must not change its inputs."""
    inputs, saved = (q_HQD, k_KTD, v_KTV), _Saved()
    saved.inputs = inputs
    gradients: list[Tensor] = []
    anchor = torch.empty(0, device=q_HQD.device, requires_grad=True)
    with torch.enable_grad(), saved_tensors_hooks(saved.pack, saved.unpack):
        out = attention(*_Enter.apply(anchor, gradients, *(x.detach() for x in inputs)))
    edge, tensors = get_gradient_edge(out), tuple(saved.tensors)
    saved.clear()

    def backward(dout_HQV: Tensor, again: Inputs, kept: tuple[Tensor, ...]) -> Gradients:
        saved.inputs, saved.tensors = again, list(kept)
        try:
            torch.autograd.backward(edge, dout_HQV.to(q_dtype), inputs=[anchor])
            dq, dk, dv = gradients
        finally:
            gradients.clear()
            saved.clear()
        return dq, dk, dv

    q_dtype = q_HQD.dtype
    return Whole(out=out.detach(), saved=tensors, backward=backward)


class _Enter(torch.autograd.Function):
    """The graph's beginning. A leaf of the graph would be kept by it, so gradients end in a list instead."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, gradients: list[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.gradients = gradients
        ctx.save_for_backward()
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.gradients.extend(grads)
        return grads[0].new_empty(0), None, None, None, None


@dataclass(frozen=True)
class _Input:
    """One of the inputs, with dims of one element more or less."""

    place: int
    size: torch.Size


class _Saved:
    """Takes what a graph would save, and gives it back in the backward."""

    def __init__(self) -> None:
        self.inputs: tuple[Tensor, ...] = ()
        self.tensors: list[Tensor] = []

    def clear(self) -> None:
        self.inputs, self.tensors = (), []

    def pack(self, tensor: Tensor) -> Tensor | _Input | int:
        if not tensor.is_floating_point():
            return tensor  # the mask's tables, which all layers share
        for place, given in enumerate(self.inputs):
            if identity(tensor) == identity(given):
                return _Input(place, tensor.size())
        self.tensors.append(tensor.detach())
        return len(self.tensors) - 1

    def unpack(self, packed: Tensor | _Input | int) -> Tensor:
        if isinstance(packed, _Input):
            return self.inputs[packed.place].view(packed.size)
        return self.tensors[packed] if isinstance(packed, int) else packed


def identity(tensor: Tensor) -> tuple[object, ...]:
    """The same for two tensors of the same elements in the same memory. Handed in again, they may lie elsewhere."""
    plain = tensor.squeeze()
    memory = tensor.untyped_storage()._cdata, tensor.storage_offset()  # tensors without memory have no address
    return memory, plain.dtype, plain.shape, plain.stride()

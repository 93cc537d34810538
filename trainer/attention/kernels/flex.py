# ruff: noqa: N803, N806 (shape suffixes)
"""The GPU's kernel: FlexAttention (Dong et al. 2024) on the occupied tiles, with the mask's rule in those not full.

Shapes: H query heads, K key heads, Q queries, T keys, D head_dim of queries and keys, V of values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.fx.experimental._config
from jaxtyping import Float, Int32
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from preshard.trainer.attention.kernels import Gradients, Inputs, Whole
from preshard.trainer.attention.kernels.whole import accumulation_dtype, whole_by_autograd
from preshard.trainer.attention.mask import MaskTensors, visible
from preshard.trainer.attention.tiles import TileList, Tiles, list_for
from preshard.trainer.device import to_device

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def backward_from_forward(
    forward: Forward,
    dout_HQV: Float[Tensor, "H Q V"],
    q_HQD: Float[Tensor, "H Q D"],
    k_KTD: Float[Tensor, "K T D"],
    v_KTV: Float[Tensor, "K T V"],
    out_HQV: Float[Tensor, "H Q V"],
    lse_HQ: Float[Tensor, "H Q"],
) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "K T D"], Float[Tensor, "K T V"]]:
    """Gradients of q, k and v by these keys alone, in the accumulation dtype.

    Args:
        forward: from q, k and v to the output and log-sum-exp over these keys, differentiable in both.
        dout_HQV: gradient of the whole rows' output.
        out_HQV, lse_HQ: of the whole rows, over other keys too.
    """
    inputs = tuple(x.detach().requires_grad_() for x in (q_HQD, k_KTD, v_KTV))
    with torch.enable_grad():
        part_HQD, part_lse_HQ = forward(*inputs)
    dtype = accumulation_dtype(q_HQD.dtype)
    dpart = share(part_lse_HQ.detach(), lse_HQ) * dout_HQV.to(dtype)
    dpart_lse = (dpart * (part_HQD.detach().to(dtype) - out_HQV.to(dtype))).sum(dim=-1)
    grads = torch.autograd.grad(
        (part_HQD, part_lse_HQ), inputs, (dpart.to(part_HQD.dtype), dpart_lse.to(part_lse_HQ.dtype))
    )
    dq, dk, dv = (grad.to(dtype) for grad in grads)
    return dq, dk, dv


def share(part_lse_HQ: Float[Tensor, "H Q"], lse_HQ: Float[Tensor, "H Q"]) -> Float[Tensor, "H Q 1"]:
    """The part of a row's softmax that falls on some of its keys: ``exp(part - whole)``, 0 where they see nothing."""
    return torch.exp(part_lse_HQ - lse_HQ).masked_fill(part_lse_HQ == -torch.inf, 0.0).unsqueeze(-1)


# Otherwise slices of fewer than 128 tokens would use a kernel made for decoding.
_OPTIONS: dict[str, Any] = {"BACKEND": "TRITON"}
# A graph for all lengths does not know that they are whole tiles, and would check each load against the length.
_WHOLE_TILES = _OPTIONS | {"IS_DIVISIBLE": True}


MOST_COMPILATIONS = 32
"""Graphs of one process. Lengths do not make new ones: a length of one tile does, for queries and for keys, and so do
whole tiles, whether gradients are wanted, the dtype and the heads. A model has one dtype and few kinds of layers."""


@cache
def compiled_attention(backend: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
    """FlexAttention, compiled for all lengths at once: the mask's tensors are its inputs, not constants.

    Past ``MOST_COMPILATIONS`` it raises: FlexAttention that is not compiled would make a dense matrix of scores.
    """

    def attention(*args: Any, **kwargs: Any) -> Any:
        return flex_attention(*args, **kwargs)

    # torch counts by code object; with one of its own, nobody else's compilations of FlexAttention count.
    attention.__code__ = attention.__code__.replace()
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend=backend)
    shapes: Any = torch.fx.experimental._config
    limits: Any = torch._dynamo.config  # arguments of torch.compile set them too, but not in 2.10

    def call(*args: Any, **kwargs: Any) -> Any:
        # Lengths that happen to be equal at the first call must not have to be equal ever after. A cap of the scores is
        # a constant: as an input of the graph FlexAttention cannot lower it for CUDA.
        with (
            shapes.patch(use_duck_shape=False),
            limits.patch(recompile_limit=MOST_COMPILATIONS, fail_on_recompile_limit_hit=True, specialize_float=True),
        ):
            return compiled(*args, **kwargs)

    return call


@dataclass(frozen=True, kw_only=True)
class FlexTiles:
    """The tiles in FlexAttention's form."""

    empty: bool
    block_mask: BlockMask


@dataclass(frozen=True, kw_only=True)
class Flex:
    """FlexAttention over the occupied tiles; float32, bfloat16 and float16, head_dim 16 or more.

    FlexAttention's own backward knows only its own forward's rows. Where these are all the keys of the rows, that is
    enough (``whole``). For a part of the keys the backward runs the forward again and passes the gradients of both its
    results through it (``backward_from_forward``): forward and backward together cost 4.5 forwards instead of 3.5.

    Attributes:
        attention: FlexAttention; by default it is compiled, as a GPU needs. Uncompiled it makes a dense matrix.
        softcap: see :func:`preshard.trainer.attention.kernels.kernel_for`.
    """

    attention: Callable[..., Any] | None = None
    softcap: float | None = None

    def prepare(self, queries: MaskTensors, keys: MaskTensors, listed: TileList | None = None) -> FlexTiles:
        tiles = list_for("cuda", queries, keys) if listed is None else Tiles.of(listed, queries, keys)
        return FlexTiles(empty=tiles.empty, block_mask=block_mask(tiles))

    def forward(
        self,
        q_HQD: Float[Tensor, "H Q D"],
        k_KTD: Float[Tensor, "K T D"],
        v_KTV: Float[Tensor, "K T V"],
        tiles: FlexTiles,
    ) -> tuple[Float[Tensor, "H Q V"], Float[Tensor, "H Q"]]:
        given = loadable(q_HQD, k_KTD, v_KTV)
        out, aux = self._attend(*given, tiles, return_aux=AuxRequest(lse=True))
        return out[0], aux.lse[0].to(accumulation_dtype(q_HQD.dtype))

    def whole(
        self,
        q_HQD: Float[Tensor, "H Q D"],
        k_KTD: Float[Tensor, "K T D"],
        v_KTV: Float[Tensor, "K T V"],
        tiles: FlexTiles,
    ) -> Whole:
        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = self._attend(q, k, v, tiles)[0]
            return out

        made = whole_by_autograd(attention, *loadable(q_HQD, k_KTD, v_KTV))
        differentiate = made.backward  # alone: what is called later must not keep the output

        def backward(dout_HQV: Tensor, again: Inputs, kept: tuple[Tensor, ...]) -> Gradients:
            return differentiate(dout_HQV, loadable(*again), kept)

        return replace(made, backward=backward)

    def _attend(self, q_HQD: Tensor, k_KTD: Tensor, v_KTV: Tensor, tiles: FlexTiles, **asked: Any) -> Any:
        q_tile, k_tile = tiles.block_mask.BLOCK_SIZE
        in_tiles = q_HQD.shape[1] % q_tile == k_KTD.shape[1] % k_tile == 0
        return (self.attention or compiled_attention())(
            q_HQD[None], k_KTD[None], v_KTV[None],
            score_mod=None if self.softcap is None else capping(self.softcap),
            block_mask=tiles.block_mask, enable_gqa=len(q_HQD) != len(k_KTD),
            kernel_options=_WHOLE_TILES if in_tiles else _OPTIONS, **asked,
        )  # fmt: skip

    def backward(
        self,
        dout_HQV: Float[Tensor, "H Q V"],
        q_HQD: Float[Tensor, "H Q D"],
        k_KTD: Float[Tensor, "K T D"],
        v_KTV: Float[Tensor, "K T V"],
        out_HQV: Float[Tensor, "H Q V"],
        lse_HQ: Float[Tensor, "H Q"],
        tiles: FlexTiles,
    ) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "K T D"], Float[Tensor, "K T V"]]:
        def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return self.forward(q, k, v, tiles)

        return backward_from_forward(forward, dout_HQV, q_HQD, k_KTD, v_KTV, out_HQV, lse_HQ)


def loadable(*tensors: Tensor) -> Inputs:
    """Tensors that a graph for all lengths can load 16 bytes at a time; one that it could not is copied.

    It can where a tensor begins its memory and fills it, in any order of its dims. A stride or a beginning that follows
    from no size is an input of the graph, of which nothing is known: views of a message of keys and values took twice
    the time on an H200, of which copies take a twentieth.
    """
    q, k, v = (x if _fills_memory(x) else x.clone(memory_format=torch.contiguous_format) for x in tensors)
    return q, k, v


def _fills_memory(x: Tensor) -> bool:
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.storage_offset() == 0 and last + 1 == x.numel()


@cache
def capping(softcap: float) -> Callable[..., Tensor]:
    """The change of scores that caps them. The same function at every call, or each would compile a graph."""

    def score_mod(score: Tensor, _batch: Tensor, _head: Tensor, _q: Tensor, _k: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return score_mod


def block_mask(tiles: Tiles) -> BlockMask:
    """The listed tiles as a ``BlockMask``: full ones are computed without the rule, partial ones with it.

    It is built from the lists; ``create_block_mask`` would evaluate the rule for every pair of the sequence. Tables are
    as wide as their longest row, where ``from_kv_blocks`` would make dense ones.
    """
    queries, keys = tiles.queries, tiles.keys

    def mask_mod(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return visible(queries, keys, q, k)

    n_rows, n_columns = len(tiles.n_full), -(-len(keys) // tiles.k_tile)
    rows = np.repeat(np.arange(n_rows), np.diff(tiles.edges))
    full = np.arange(len(rows)) - tiles.edges[rows] < tiles.n_full[rows]
    by_key = np.argsort(tiles.columns.astype(np.min_scalar_type(n_columns)), kind="stable")
    tables = {
        "kv": _tables(rows, tiles.columns, full, n_rows),
        "q": _tables(tiles.columns[by_key], rows[by_key], full[by_key], n_columns),
    }
    named: dict[str, Any] = {
        f"{kind}{axis}_{what}": to_device(torch.from_numpy(array), queries.device)[None, None]
        for axis, of_axis in tables.items()
        for kind, pair in of_axis.items()
        for what, array in zip(("num_blocks", "indices"), pair, strict=True)
    }
    return BlockMask(
        seq_lengths=(len(queries), len(keys)), BLOCK_SIZE=(tiles.q_tile, tiles.k_tile), mask_mod=mask_mod, **named
    )


def _tables(
    rows: np.ndarray, columns: np.ndarray, full: np.ndarray, n_rows: int
) -> dict[str, tuple[Int32[np.ndarray, "rows"], Int32[np.ndarray, "rows width"]]]:
    """The number of each row's columns, and they themselves, first in the row: of partial tiles, and of full ones.

    FlexAttention reads no further than their number. In torch 2.10 both tables have the strides of the first. A width
    of 1 would be another graph.
    """
    kinds = {"": ~full, "full_": full}
    counts = {kind: np.bincount(rows[chosen], minlength=n_rows) for kind, chosen in kinds.items()}
    width = max(2, *(int(count.max(initial=0)) for count in counts.values()))
    made = {}
    for kind, chosen in kinds.items():
        table, first = np.zeros((n_rows, width), np.int32), np.cumsum(counts[kind]) - counts[kind]
        of_row = rows[chosen]
        table[of_row, np.arange(len(of_row)) - first[of_row]] = columns[chosen]
        made[kind] = counts[kind].astype(np.int32), table
    return made

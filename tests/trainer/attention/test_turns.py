"""Key heads that are gathered in turns: the same results, with fewer gathered keys at a time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from dense_kernel import DenseKernel
from thread_ranks import run_ranks
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import SCHEMES
from preshard.schemas.mask import dense_mask
from preshard.trainer.attention.bind import KINDS, bind, check_heads
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.gather import _arrival
from preshard.trainer.attention.kept import BlockResults
from preshard.trainer.attention.kernels import Whole
from preshard.trainer.attention.kernels.flash_cpu import FlashCPU
from preshard.trainer.attention.kernels.whole import whole_by_autograd
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.reference import reference_attention
from preshard.trainer.extra.saving import all_but_attention

ROWS = [
    *[(0, 0, -1)] * 30, *[(0, 0, 0)] * 9, *[(0, 0, -1)] * 4, *[(0, 0, 0)] * 5,  # a group in two places
    *[(0, 1, -1)] * 11, *[(0, 2, -1)] * 13, *[(-1, 0, -1)] * 8, *[(1, 0, -1)] * 72, *[(2, 0, -1)] * 8,
]  # fmt: skip
UNEVEN = {"heads": 10, "kv_heads": 5}
"""Heads for which two at a time make three turns, and the last has one key head."""


@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.slow), 5])
@pytest.mark.parametrize(("ulysses", "ring"), [(1, 4), (2, 2)])
@pytest.mark.parametrize("scheme", [*SCHEMES, "random"])
def test_turns_are_the_reference(
    scheme: str, ulysses: int, ring: int, window: int | None, make_mask: Any, make_layout: Any, make_case: Any,
    attend: Any, expected: Any, assert_same: Any,
) -> None:  # fmt: skip
    """Fails when a turn's queries meet another turn's keys, or the last turn's heads or gradients are lost."""
    mask = make_mask(ROWS)
    edges = np.array([0, 80, 152, 160])
    case = make_case(
        mask=mask, layout=make_layout(mask, scheme, ring, edges=edges, seed=1), ulysses=ulysses, window=window, **UNEVEN
    )
    allowed = dense_mask(mask, window=window)
    assert np.triu(allowed, 1).any()
    assert (allowed != dense_mask(mask)).any() == (window is not None)
    strides = [{"head_stride": 2}, {"head_stride": 1}, {"head_stride": 2, "exchange": "all"}]
    strides += [{**way, "overlap": True} for way in strides] + [{"overlap": True}]
    right, listed = expected(case), []
    with mock.patch("preshard.trainer.attention.gather._list_turns", side_effect=_noted(listed)):
        found = attend(case, [("gather", options) for options in (*strides, {})])
    assert max(listed) > 1 == min(listed)
    for ours in found:
        assert_same(ours, right)
    for ours, ahead in zip(found[:3], found[3:6], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, ahead, strict=True))


def _noted(numbers: list[int]) -> Any:
    from preshard.trainer.attention.gather import _list_turns

    def list_turns(*args: Any) -> Any:
        turns = _list_turns(*args)
        numbers.append(len(turns))
        return turns

    return list_turns


@pytest.mark.parametrize("kernel", [FlashCPU, DenseKernel])
def test_sinks_are_those_of_the_turns_heads(kernel: Any, make_mask: Any, make_layout: Any, make_case: Any) -> None:
    """Fails when a turn takes another turn's sinks, or their gradients are in another order."""
    mask = make_mask(ROWS)
    case = make_case(mask=mask, layout=make_layout(mask, "random", 4, seed=2), **UNEVEN)
    logits = torch.linspace(-2, 2, 10, dtype=torch.float64)

    def on_rank(cp: ContextParallel) -> Any:
        mine = torch.from_numpy(case.slices()[cp.cp_rank])
        q, k, v, dout = (x[:, mine] for x in case.inputs())
        given = [x.clone().requires_grad_() for x in (q, k, v, logits)]
        attend = bind("gather", case.layout, case.tensors, cp, head_stride=2, overlap=True, kernel=kernel())
        out = attend(*given[:3], sinks=given[3])
        return mine, out.detach(), *torch.autograd.grad(out, given, dout)

    *inputs, dout = case.inputs()
    right = [x.requires_grad_() for x in (*inputs, logits.clone())]
    out = reference_attention(*right[:3], case.tensors, sinks=right[3])
    wanted = out.detach(), *torch.autograd.grad(out, right, dout)
    found = run_ranks(1, 4, on_rank)
    for mine, *parts, _ in found:
        for part, whole in zip(parts, wanted[:4], strict=True):
            torch.testing.assert_close(part, whole[:, mine], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(sum(parts[-1] for parts in found), wanted[4], rtol=1e-11, atol=1e-11)


class Fused(torch.autograd.Function):
    """Saves what a compiled FlashAttention does: its inputs, its output with one dim more, and a log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tiles: Any) -> Tensor:
        out, lse = FlashCPU().forward(q[0], k[0], v[0], tiles)
        ctx.save_for_backward(q, k, v, out[None], lse)
        ctx.tiles = tiles
        return out[None]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = (x[0] if x.ndim == 4 else x for x in ctx.saved_tensors)
        dq, dk, dv = FlashCPU().backward(grads[0][0], q, k, v, out, lse, ctx.tiles)
        return dq[None], dk[None], dv[None], None


class GraphKernel(FlashCPU):
    """A kernel that torch differentiates, as FlexAttention on a GPU."""

    def whole(self, q: Tensor, k: Tensor, v: Tensor, tiles: Any) -> Whole:
        return whole_by_autograd(lambda *x: Fused.apply(*(y[None] for y in x), tiles)[0], q, k, v)


class _LargeSums(TorchDispatchMode):
    """Counts results in float32 of at least as many numbers as a tensor has."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.found, self.calls = least, 0, 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        large = [x for x in tree_leaves(out) if isinstance(x, Tensor) and x.numel() >= self.least]
        self.calls, self.found = self.calls + 1, self.found + sum(x.dtype == torch.float32 for x in large)
        return out


def test_gradients_that_no_rank_adds_to_stay_as_the_kernel_gives_them(make_mask: Any, make_layout: Any) -> None:
    """Fails when a rank with all keys, as in Ulysses, holds its gradients in float32: 20 GB of 15 M tokens."""
    arrays = make_mask(ROWS)
    mask, layout = MaskTensors.from_arrays(arrays), make_layout(arrays, "contiguous", 1)
    kernel = mock.Mock(wraps=FlashCPU())
    native = partial(torch.nn.functional.scaled_dot_product_attention, enable_gqa=True)
    kernel.whole = lambda q, k, v, _tiles: whole_by_autograd(lambda *x: native(*(y[None] for y in x))[0], q, k, v)
    attend = bind("ulysses", layout, mask, ContextParallel(), kernel=kernel)
    q, k, v = (torch.randn(heads, len(ROWS), 16, dtype=torch.bfloat16, requires_grad=True) for heads in (4, 2, 2))
    out = attend(q, k, v)
    with _LargeSums(k.numel()) as sums:
        out.backward(torch.ones_like(out))
    assert sums.calls > 0
    assert sums.found == 0


@pytest.mark.parametrize("kernel", [FlashCPU, GraphKernel])
def test_what_is_kept_of_a_block_is_one_output(kernel: Any, make_mask: Any, make_layout: Any, make_case: Any) -> None:
    """Fails when ``--recompute selective`` keeps the output of a turn beside the whole one, keeps gathered keys, or
    gives a turn what another has kept.
    """
    mask = make_mask(ROWS)
    case = make_case(mask=mask, layout=make_layout(mask, "zigzag", 2), **UNEVEN)
    kept: dict[int, list[int]] = defaultdict(list)
    keep = BlockResults.keep

    def noted(self: BlockResults, result: Any) -> Any:
        out, saved, _ = result
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in (out, *saved)}
        kept[id(self)].append(sum(storages.values()))
        return keep(self, result)

    def on_rank(cp: ContextParallel) -> Any:
        mine = torch.from_numpy(case.slices()[cp.cp_rank])
        *inputs, dout = (x[:, mine] for x in case.inputs())
        found = []
        for stride in (0, 2):
            given = [x.clone().requires_grad_() for x in inputs]
            attend = bind("gather", case.layout, case.tensors, cp, head_stride=stride, kernel=kernel())
            out = checkpoint(lambda *x, a=attend: a(*(y.sin() for y in x)), *given, use_reentrant=False,
                             context_fn=all_but_attention)  # fmt: skip
            found.append((out.detach(), *torch.autograd.grad(out, given, dout)))
        return found

    with mock.patch.object(BlockResults, "keep", noted):
        results = run_ranks(1, 2, on_rank)
    for plain, turns in results:
        for ours, right in zip(turns, plain, strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)
    rows, numbers = UNEVEN["heads"] * len(ROWS) // 2, case.head_dim + 1  # the output, and a log-sum-exp
    assert [size for sizes in kept.values() for size in sizes] == [8 * rows * numbers] * 4


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("stride", "turns"), [(0, 1), (4, 1), (3, 2), (2, 2), (1, 4)])
def test_gathered_keys_fall_by_the_stride(
    stride: int, turns: int, overlap: bool, make_mask: Any, make_layout: Any, make_case: Any
) -> None:
    """Fails when keys of one turn are still there when those of the next arrive, or with overlap of the one after,
    forward or backward; or gradients of more heads than a turn's are sent together.
    """
    mask = make_mask([(0, 0, -1)] * 128)
    case = make_case(mask=mask, layout=make_layout(mask, "contiguous", 4), heads=8, kv_heads=4)
    alive: dict[int, list[tuple[StorageWeakRef, int]]] = defaultdict(list)
    peak, sent, gathered = defaultdict(int), defaultdict(int), defaultdict(int)

    def noted(work: Any, message: Any, result: Any) -> Any:
        here = get_ident()
        assert (work is not None) == overlap
        if not isinstance(result, partial):  # gradients, which are added up
            sent[here] = max(sent[here], message.nbytes)
            return _arrival(work, message, result)
        storage = result.args[0].untyped_storage()
        alive[here].append((StorageWeakRef(storage), storage.nbytes()))
        now = sum(size for there, size in alive[here] if not there.expired())
        peak[here], gathered[here] = max(peak[here], now), gathered[here] + storage.nbytes()
        return _arrival(work, message, result)

    def on_rank(cp: ContextParallel) -> tuple[int, int, int, int]:
        attend = bind("gather", case.layout, case.tensors, cp, head_stride=stride, overlap=overlap)
        mine = torch.from_numpy(case.slices()[cp.cp_rank])
        q, k, v = (x[:, mine].requires_grad_() for x in case.inputs()[:3])
        attend(q, k, v).sum().backward()
        here = get_ident()
        return len(alive[here]), peak[here], sent[here], gathered[here]

    with mock.patch("preshard.trainer.attention.gather._arrival", noted):
        found = run_ranks(1, 4, on_rank)
    for rank, counted in enumerate(found):
        tokens = 32 * (rank + 1)  # a causal mask: those of the ranks before, and its own
        whole = 2 * 4 * tokens * case.head_dim * 8
        of_a_turn = whole * min(stride or (2 if overlap else 4), 4) // 4
        at_once = min(of_a_turn * (1 + overlap), whole)
        assert counted == (2 * (turns if stride else whole // of_a_turn), at_once, of_a_turn, 2 * whole)


def test_a_pack_of_padding_in_turns(make_mask: Any, make_layout: Any, make_case: Any, attend: Any) -> None:
    """Fails when a turn without a visible key leaves out a message, or a part of the output."""
    mask = make_mask([(-1, 0, -1)] * 64)
    case = make_case(mask=mask, layout=make_layout(mask, "contiguous", 4), **UNEVEN)
    [ours] = attend(replace(case, dtype=torch.float32), [("gather", {"head_stride": 2})])
    assert all(not x.any() for x in ours)


def test_only_a_gather_takes_turns(make_mask: Any, make_layout: Any, make_case: Any) -> None:
    """Fails when the option has no effect without a word, or takes more heads than a rank has."""
    mask = make_mask(ROWS)
    case = make_case(mask=mask, layout=make_layout(mask, "contiguous", 1))
    degrees = {"ulysses_degree": 1, "ring_degree": 1}
    for kind in {*KINDS, "hybrid", "reference"} - {"gather"}:
        said = f"--head-stride needs attention gather, not '{kind}': use attention gather, or omit the option"
        with pytest.raises(ConfigError, match=said):
            bind(kind, case.layout, case.tensors, ContextParallel(), head_stride=1)
        with pytest.raises(ConfigError, match=said):
            check_heads(kind, 8, 2, **degrees, head_stride=1)
    with pytest.raises(ConfigError, match="--head-stride is -1; give the key heads to gather at a time, or 0 for all"):
        bind("gather", case.layout, case.tensors, ContextParallel(), head_stride=-1)
    check_heads("gather", 8, 4, ulysses_degree=2, ring_degree=2, head_stride=2)
    with pytest.raises(
        ConfigError, match="is 3; 4 key heads over ulysses_degree 2 are 2 on each rank: take at most 2, or omit"
    ):
        check_heads("gather", 8, 4, ulysses_degree=2, ring_degree=2, head_stride=3)

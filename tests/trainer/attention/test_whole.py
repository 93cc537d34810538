"""One call over all the keys that some rows see: the backward is the kernel's own, and keeps no keys."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from dense_kernel import DenseKernel
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels import Kernel
from preshard.trainer.attention.kernels.flash_cpu import FlashCPU
from preshard.trainer.attention.kernels.flex import Flex, compiled_attention
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.reference import reference_attention

TOKENS = [(0, 0, -1)] * 50 + [(0, 0, 3)] * 40 + [(0, 1, -1)] * 60 + [(-1, 0, -1)] * 20 + [(1, 0, -1)] * 130


class Counting:
    """FlexAttention that counts its forwards."""

    def __init__(self, attention: Any) -> None:
        self.attention, self.calls = attention, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        with warnings.catch_warnings(action="ignore"):
            return self.attention(*args, **kwargs)


@pytest.fixture(autouse=True)
def flex_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch refuses gradients of FlexAttention on a CPU, as it has no fast kernel; its plain one is correct."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)


def inputs(kv_heads: int = 2) -> list[torch.Tensor]:
    """q, k, v and dout; k and v lie in one memory, as they do in a message."""
    rng = torch.Generator().manual_seed(0)
    q, dout = (torch.randn(4, len(TOKENS), 16, generator=rng, dtype=torch.float64) for _ in range(2))
    message = torch.randn(len(TOKENS), 2, kv_heads, 16, generator=rng, dtype=torch.float64)
    return [q, message[:, 0].transpose(0, 1), message[:, 1].transpose(0, 1), dout]


@pytest.mark.parametrize("kind", ["flash", "dense", pytest.param("flex", marks=pytest.mark.slow)])
def test_the_kernels_own_backward_is_exact_and_keeps_no_keys(kind: str, make_mask: Any) -> None:
    """Fails when gradients come from what was saved in the wrong place, when gathered keys stay in memory between
    forward and backward, or when the forward runs a second time.
    """
    attention = Counting(flex_attention)
    kernels: dict[str, Kernel] = {"flash": FlashCPU(), "dense": DenseKernel()}
    kernel = kernels.get(kind, Flex(attention=attention))
    mask = MaskTensors.from_arrays(make_mask(TOKENS))
    every = mask.at(np.arange(len(mask)))
    q, k, v, dout = inputs()
    wanted = [x.clone().requires_grad_() for x in (q, k, v)]
    call = kernel.whole(q, k, v, kernel.prepare(every, every))
    held = {tensor.untyped_storage().data_ptr() for tensor in call.saved}
    assert not held & {x.untyped_storage().data_ptr() for x in (q, k, v)}
    ours = call.out, *call.backward(dout, (q.clone(), *again(k, v)), call.saved)
    out = reference_attention(*wanted, mask)
    for mine, right in zip(ours, (out, *torch.autograd.grad(out, wanted, dout)), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)
    assert attention.calls == ("flex" in kind)


@pytest.mark.parametrize("kind", ["flash", "dense", "flex"])
def test_what_goes_backward_holds_no_tensor(kind: str, make_mask: Any) -> None:
    """Fails when the output, or a copy that the kernel was given, lives as long as what will differentiate it: each
    layer of a step that is recomputed would keep its own.
    """
    kernels: dict[str, Kernel] = {"flash": FlashCPU(), "dense": DenseKernel(), "flex": Flex(attention=flex_attention)}
    kernel = kernels[kind]
    mask = MaskTensors.from_arrays(make_mask(TOKENS))
    every = mask.at(np.arange(len(mask)))
    q, k, v, _ = inputs()
    q, k, v = torch.cat([q, k, v]).split([len(q), len(k), len(v)])  # which FlexAttention copies
    call = kernel.whole(q, k, v, kernel.prepare(every, every))
    held = [weakref.ref(x.untyped_storage()) for x in (call.out, *call.saved)]
    backward = call.backward
    del call
    assert callable(backward)
    assert not any(each() is not None for each in held)


def again(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same keys and values as they come back from elsewhere: each alone, while the first ones are overwritten."""
    copies = k.clone(), v.clone()
    for stale in (k, v):
        stale.fill_(torch.nan)
    return copies


@pytest.mark.slow  # test_kernels.py has the forward alone
def test_flex_is_compiled_once_for_batches_of_all_lengths(make_mask: Any) -> None:
    """Fails when a length or a mask is a constant of the graph that is trained, backward included, or when what is
    compiled takes keys from where they lay in the forward.
    """
    from torch._dynamo.backends.debugging import aot_eager  # here, since every process that runs tests reads this file

    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, given: list[Any]) -> Any:
        graphs.append(graph)
        return aot_eager(graph, given)

    kernel = Flex(attention=Counting(compiled_attention(backend)))
    for length, document in ((300, 100), (257, 30), (513, 512)):
        mask = MaskTensors.from_arrays(make_mask([(i // document, 0, -1) for i in range(length)]))
        q, k, v, dout = (torch.randn(n, length, 16, dtype=torch.float64) for n in (4, 2, 2, 4))
        wanted = [x.clone().requires_grad_() for x in (q, k, v)]
        call = kernel.whole(q, k, v, kernel.prepare(mask, mask))
        ours = call.out, *call.backward(dout, (q.clone(), *again(k, v)), call.saved)
        out = reference_attention(*wanted, mask)
        for mine, right in zip(ours, (out, *torch.autograd.grad(out, wanted, dout)), strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)
    assert len(graphs) == 1


@pytest.mark.parametrize("kind", ["gather", "ulysses"])
def test_a_recomputed_layer_keeps_nothing_of_its_kernel(kind: str, make_mask: Any, make_layout: Any) -> None:
    """Fails when the kernel's graph keeps tensors that recomputation should have dropped, or misses them."""
    mask = make_mask(TOKENS[:296])
    attend = bind(
        kind, make_layout(mask, "random", 1), MaskTensors.from_arrays(mask), ContextParallel(), kernel=DenseKernel()
    )
    x = torch.randn(4, mask.seq_len, 8, dtype=torch.float64, requires_grad=True)
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        plain = attend(x, x.sin(), x.cos())
        made = len(kept)
        recomputed = checkpoint(attend, x, x.sin(), x.cos(), use_reentrant=False)
    assert made > 4
    (one,), (two,) = (torch.autograd.grad(out.square().sum(), x) for out in (plain, recomputed))
    assert torch.equal(one, two)
    assert sum(bool(tensor.numel() >= mask.seq_len**2) for tensor in kept[:made])
    assert not any(tensor.numel() >= mask.seq_len**2 for tensor in kept[made:])

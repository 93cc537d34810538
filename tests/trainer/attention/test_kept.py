"""Blocks that are computed again keep attention, also of kernels that torch differentiates, as on a GPU."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from dense_kernel import DenseKernel
from thread_ranks import run_ranks
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from preshard.schemas.layout import rank_positions
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.gather import _NeededExchange
from preshard.trainer.attention.kept import BlockResults, once
from preshard.trainer.attention.kernels.flex import Flex, compiled_attention
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.ring import _Hop
from preshard.trainer.extra.saving import all_but_attention, save_memory
from preshard.trainer.models.interface import PACKED, register_attention

TOKENS = [(0, 0, -1)] * 50 + [(0, 0, 3)] * 12 + [(0, 1, -1)] * 10 + [(-1, 0, -1)] * 8 + [(1, 0, -1)] * 80
LAYERS = 2


class CountingKernel(DenseKernel):
    """Counts its forwards, of which a backward over a part of the keys has one too."""

    def __init__(self) -> None:
        object.__setattr__(self, "forwards", [])

    def forward(self, *args: Any) -> Any:
        self.forwards.append(1)  # type: ignore[attr-defined]
        return super().forward(*args)


def _model() -> Any:
    transformers = register_attention()
    config = transformers.Qwen3Config(
        vocab_size=97, hidden_size=16, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=PACKED).double().train()


def _count_calls(monkeypatch: pytest.MonkeyPatch, holder: type, name: str, calls: list[int]) -> None:
    real = getattr(holder, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(holder, name, counted)


KINDS: list[tuple[str, dict[str, Any], int, int]] = [
    ("gather", {}, 1, 2),
    ("gather", {"head_stride": 1}, 1, 2),
    ("gather", {"overlap": True}, 1, 2),
    ("ulysses", {}, 2, 1),
    ("ulysses", {"overlap": True}, 2, 1),
    ("ring", {}, 1, 2),
    ("hybrid", {}, 2, 2),
]


@pytest.mark.parametrize(("kind", "options", "ulysses", "ring"), KINDS)
def test_kept_attention_is_computed_once(
    kind: str, options: dict[str, Any], ulysses: int, ring: int, make_mask: Any, make_layout: Any, monkeypatch: Any
) -> None:
    """Fails when ``selective`` computes attention a second time, exchanges keys for it a second time, or changes the
    loss or a gradient.
    """
    mask = make_mask(TOKENS)
    layout, original = make_layout(mask, "zigzag" if ring > 1 else "contiguous", ring), _model()
    exchanges: list[int] = []
    for holder, name in ((_Hop, "__init__"), (_NeededExchange, "gather")):
        _count_calls(monkeypatch, holder, name, exchanges)

    def on_rank(recompute: str, cp: ContextParallel) -> Any:
        model, kernel = copy.deepcopy(original), CountingKernel()
        save_memory(model, recompute=recompute)
        attend = bind(kind, layout, MaskTensors.from_arrays(mask), cp, kernel=kernel, **options)
        at = {"ring_rank": cp.ring_rank, "ulysses_degree": ulysses, "ulysses_rank": cp.ulysses_rank}
        mine = torch.from_numpy(rank_positions(layout.runs, **at))
        given = {"position_ids": mine[None], "use_cache": False, "attend": attend, "pack_length": len(TOKENS)}
        loss = model(input_ids=mine[None] % 97, **given).logits.logsumexp(-1).sum()
        forward = len(kernel.forwards)  # type: ignore[attr-defined]
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return [loss.detach(), *gradients], forward, len(kernel.forwards) - forward  # type: ignore[attr-defined]

    found, exchanged = {}, {}
    for recompute in ("none", "selective", "full"):
        exchanges.clear()
        found[recompute] = run_ranks(ulysses, ring, partial(on_rank, recompute))
        exchanged[recompute] = len(exchanges)
    assert exchanged["none"] == exchanged["selective"]
    assert (exchanged["full"] > exchanged["none"]) == (kind != "ulysses")
    for plain, kept, again in zip(*found.values(), strict=True):
        torch.testing.assert_close(kept[0], plain[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(again[0], plain[0], rtol=1e-12, atol=1e-12)
        forward, backward = plain[1:]
        per_layer = {"ring": ring, "hybrid": ring}.get(kind, 2 if options else 1)
        assert (forward, backward) == (LAYERS * per_layer, LAYERS * per_layer if kind in ("ring", "hybrid") else 0)
        assert kept[1:] == (forward, backward)
        assert again[1:] == (forward, forward + backward)


@pytest.mark.slow  # the kernel that is not compiled is above
def test_a_compiled_kernel_runs_once_and_no_key_is_kept(
    make_mask: Any, make_layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a compiled kernel's forward runs again, or when more is kept of it than its output and its
    log-sum-exp: all that a compiled region returns has the keys in it, which would be whole for every layer.
    """
    from torch._dynamo.backends.debugging import aot_eager  # here, since every process that runs tests reads this file

    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    kept: dict[int, int] = {}
    calls: list[int] = []
    keep = BlockResults.keep

    def noted(self: BlockResults, result: Any) -> Any:
        out, saved, _ = result
        kept.update({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in (out, *saved)})
        return keep(self, result)

    monkeypatch.setattr(BlockResults, "keep", noted)
    compiled = compiled_attention(aot_eager)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        with warnings.catch_warnings(action="ignore"):
            return compiled(*args, **kwargs)

    mask = make_mask(TOKENS)
    layout = make_layout(mask, "contiguous", 1)
    attend = bind("gather", layout, MaskTensors.from_arrays(mask), ContextParallel(), kernel=Flex(attention=counted))
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(16, 16, generator=rng, dtype=torch.float64, requires_grad=True)
    inputs = [torch.randn(n, len(TOKENS), 16, generator=rng, dtype=torch.float64) for n in (4, 2, 2)]

    def block() -> Tensor:
        return attend(*(x @ weight for x in inputs)) @ weight

    (right,) = torch.autograd.grad(block().square().sum(), weight)
    assert len(calls) == 1
    out = checkpoint(block, use_reentrant=False, context_fn=all_but_attention)
    (found,) = torch.autograd.grad(out.square().sum(), weight)
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)
    assert len(calls) == 2
    rows = 4 * len(TOKENS) * 8
    assert 17 * rows <= sum(kept.values()) <= 18 * rows


def test_an_output_that_was_changed_is_not_taken_for_attention() -> None:
    """Fails when a model that writes into attention's output gets wrong gradients in silence."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: Tensor) -> Tensor:
            return once(lambda: 2 * x)

        @staticmethod
        def backward(_ctx: Any, *grads: Tensor) -> Tensor:
            return 2 * grads[0]

    def block(x: Tensor, *, changed: bool) -> Tensor:
        made = Twice.apply(x.exp())
        return (made.mul_(3) if changed else made * 3).exp()

    x = torch.ones(3, requires_grad=True)
    (right,) = torch.autograd.grad(block(x, changed=False).sum(), x)
    out = checkpoint(block, x, changed=False, use_reentrant=False, context_fn=all_but_attention)
    for _ in range(2):  # what is kept serves every backward pass
        assert torch.equal(torch.autograd.grad(out.sum(), x, retain_graph=True)[0], right)
    out = checkpoint(block, x, changed=True, use_reentrant=False, context_fn=all_but_attention)
    with pytest.raises(RuntimeError, match="changed in place, so it cannot be reused"):
        torch.autograd.grad(out.sum(), x)

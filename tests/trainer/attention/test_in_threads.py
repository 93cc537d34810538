"""Every kind of attention between ranks that are threads: a moment's check of what ranks in processes prove."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import run_ranks
from torch import Tensor

from preshard.schemas.errors import LayoutError
from preshard.schemas.layout import TokenLayout
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.reference import reference_attention

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("ring", {}),
    ("gather", {}),
    ("gather", {"exchange": "all"}),
    ("ulysses", {}),
    ("ulysses", {"overlap": True}),
    ("gather", {"overlap": True}),
]
TOKENS = [(0, 0, -1)] * 21 + [(0, 0, 3)] * 12 + [(0, 1, -1)] * 9 + [(-1, 0, -1)] * 6 + [(1, 0, -1)] * 48


@pytest.mark.parametrize(("ulysses", "ring", "heads", "kv_heads"), [(1, 2, 8, 4), (2, 2, 12, 3), (2, 1, 8, 2)])
@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize(("with_sinks", "softcap"), [(False, None), (True, None), (True, 0.7)])
def test_every_kind_is_the_reference(
    with_sinks: bool, softcap: float | None, kind: str, options: dict[str, Any], ulysses: int, ring: int, heads: int,
    kv_heads: int, make_mask: Any, make_layout: Any, make_case: Any, assert_same: Any,
) -> None:  # fmt: skip
    """Fails when tokens, heads or gradients are sent to another rank than theirs, or added to another's; when a head
    has the sink of another, or a rank returns its gradient for rows or heads that it does not have; or when a kind
    does not cap scores, or differentiates as if it did not.
    """
    mask = make_mask(TOKENS)
    case = make_case(mask=mask, layout=make_layout(mask, "random", ring, seed=3), ulysses=ulysses, heads=heads,
                     kv_heads=kv_heads)  # fmt: skip
    sinks = torch.linspace(-1.0, 3.0, heads, dtype=torch.float64) if with_sinks else None

    def differentiate(attend: Any, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        inputs = [x.clone().requires_grad_() for x in (q, k, v, sinks) if x is not None]
        out = attend(*inputs[:3], sinks=inputs[3] if with_sinks else None)
        return out.detach(), *torch.autograd.grad(out, inputs, dout)

    def on_rank(cp: ContextParallel) -> Any:
        mine = torch.from_numpy(case.slices()[cp.cp_rank])
        attend = bind(kind, case.layout, MaskTensors.from_arrays(mask), cp, softcap=softcap, **options)
        q, k, v, dout = (x[:, mine] for x in case.inputs())
        return differentiate(attend, q, k, v, dout)

    q, k, v, dout = case.inputs()
    (*right,) = differentiate(partial(reference_attention, mask=case.tensors, softcap=softcap), q, k, v, dout)
    of_tokens = [list(part) for part in zip(*run_ranks(ulysses, ring, on_rank), strict=True)]
    if with_sinks:
        torch.testing.assert_close(torch.stack(of_tokens.pop()).sum(0), right.pop(), rtol=1e-11, atol=1e-11)
    natural = torch.from_numpy(np.argsort(np.concatenate(case.slices())))
    assert_same(tuple(torch.cat(part, dim=1)[:, natural] for part in of_tokens), right)


@pytest.mark.parametrize("length", [64, 56])
def test_needs_of_another_block_size_are_refused(length: int, make_mask: Any, make_layout: Any) -> None:
    """Fails when needs are read with the wrong block size, or a last block that is not full is not counted."""
    mask = make_mask([(0, 0, -1)] * length)
    made = make_layout(mask, "contiguous", 2)
    layout = TokenLayout(scheme="contiguous", ring_degree=2, block_size=16, runs=made.runs, needs=made.needs)

    def on_rank(cp: ContextParallel) -> None:
        bind("gather", layout, MaskTensors.from_arrays(mask), cp)

    said = rf"lists {length // 8} blocks of needed keys; {length} tokens make 4 blocks of its block_size 16"
    with pytest.raises(LayoutError, match=said):
        run_ranks(1, 2, on_rank)

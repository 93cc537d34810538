"""Values of another width than keys, as in multi-head latent attention, under every kind."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from dense_kernel import DenseKernel
from thread_ranks import run_ranks
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from preshard.schemas.layout import SCHEMES
from preshard.schemas.mask import dense_mask
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels.flash_cpu import FlashCPU
from preshard.trainer.attention.reference import reference_attention

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("ring", {}),
    ("gather", {}),
    ("gather", {"exchange": "all", "kernel": DenseKernel()}),
    ("gather", {"head_stride": 1}),
    ("gather", {"head_stride": 1, "overlap": True}),
    ("hybrid", {"kernel": DenseKernel()}),
    ("ulysses", {}),
]
OVERLAPPED: tuple[str, dict[str, Any]] = ("ulysses", {"overlap": True})
WIDTHS = [(12, 8), (24, 16), (7, 19)]
"""Widths of keys, and of values: DeepSeek-V3 has 192 and 128."""
ROWS = [
    *[(0, 0, -1)] * 31, *[(0, 0, 0)] * 17, *[(0, 1, -1)] * 11, *[(0, 2, -1)] * 13, *[(-1, 0, -1)] * 24,
    *[(1, 0, -1)] * 107, *[(-1, 0, -1)] * 13, *[(2, 0, -1)] * 5, *[(-1, 0, -1)] * 67,
]  # fmt: skip
EDGES = np.array([0, 96, 216, 240, 288])
"""Multiples of what zigzag asks for at 2, 3 and 4 ranks."""


@pytest.mark.parametrize(("ulysses", "ring"), [(1, 1), (1, 3), (2, 1), (3, 2)])
@pytest.mark.parametrize(("widths", "window"), [((12, 8), None), ((7, 19), 5)])
def test_every_kind_takes_two_widths(
    ulysses: int, ring: int, widths: tuple[int, int], window: int | None, make_mask: Any, make_layout: Any,
    make_case: Any, attend: Any, expected: Any, assert_same: Any,
) -> None:  # fmt: skip
    """Fails when a message, an output or a gradient takes values to be as wide as keys."""
    compare(ulysses, ring, widths, window, "random", (6, 6), make_mask, make_layout, make_case, attend, expected,
            assert_same)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("ulysses", "ring"), [(1, 2), (1, 3), (2, 2), (3, 1)])
@pytest.mark.parametrize("heads", [(12, 12), (12, 3), (12, 1)])
@pytest.mark.parametrize("scheme", [*SCHEMES, "random"])
def test_every_layout_takes_two_widths(
    scheme: str, heads: tuple[int, int], ulysses: int, ring: int, make_mask: Any, make_layout: Any, make_case: Any,
    attend: Any, expected: Any, assert_same: Any,
) -> None:  # fmt: skip
    """Fails as the test above does, where key heads are copied or ranks see nothing of each other."""
    for widths, window in zip(WIDTHS, (None, 9, 40), strict=True):
        compare(ulysses, ring, widths, window, scheme, heads, make_mask, make_layout, make_case, attend, expected,
                assert_same)  # fmt: skip


def compare(
    ulysses: int, ring: int, widths: tuple[int, int], window: int | None, scheme: str, heads: tuple[int, int],
    make_mask: Any, make_layout: Any, make_case: Any, attend: Any, expected: Any, assert_same: Any,
) -> None:  # fmt: skip
    """Compares every kind that a mesh and the heads allow with the reference."""
    mask = make_mask(ROWS)
    case = make_case(
        mask=mask, layout=make_layout(mask, scheme, ring, edges=EDGES, seed=3), ulysses=ulysses, window=window,
        heads=heads[0], kv_heads=heads[1], head_dim=widths[0], value_dim=widths[1],
    )  # fmt: skip
    one_key_head = heads[1] <= ulysses
    calls = [call for call in CALLS if not (one_key_head and call[1].get("overlap"))]
    calls += [OVERLAPPED] * (heads[0] % (2 * ulysses * ring) == 0)
    right = expected(case)
    assert right[0].shape == (heads[0], len(ROWS), widths[1])
    for ours in attend(case, calls):
        assert_same(ours, right)


@pytest.mark.slow
def test_processes_exchange_two_widths(
    make_mask: Any, make_layout: Any, make_case: Any, attend_in_processes: Any, expected: Any, assert_same: Any
) -> None:
    """Fails when torch's own collectives take sizes that copies in memory do not."""
    mask = make_mask(ROWS)
    for ulysses, ring in ((1, 4), (2, 2), (4, 1)):
        case = make_case(
            mask=mask, layout=make_layout(mask, "zigzag", ring, edges=EDGES), ulysses=ulysses, kv_heads=8,
            head_dim=12, value_dim=8,
        )  # fmt: skip
        right = expected(case)
        for ours in attend_in_processes(case, [*CALLS[:2], ("ulysses", {}), OVERLAPPED]):
            assert_same(ours, right)


@pytest.mark.parametrize("widths", WIDTHS)
def test_the_reference_is_torchs_own_attention(widths: tuple[int, int], make_mask: Any, make_case: Any) -> None:
    """Fails when scores are scaled by the width of values, or of keys that were filled up."""
    mask = make_mask([(0, 0, -1)] * 20 + [(1, 0, -1)] * 13)
    case = make_case(mask=mask, layout=None, head_dim=widths[0], value_dim=widths[1])
    q, k, v, _ = case.inputs()
    allowed = torch.from_numpy(dense_mask(mask))
    right = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=allowed, enable_gqa=True)[0]
    torch.testing.assert_close(reference_attention(q, k, v, case.tensors), right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["ring", "gather", "ulysses"])
def test_sinks_and_caps_take_two_widths(kind: str, make_mask: Any, make_layout: Any, make_case: Any) -> None:
    """Fails when a sink is merged into rows of another width, or capped scores are."""
    mask = make_mask(ROWS)
    case = make_case(mask=mask, layout=make_layout(mask, "zigzag", 3, edges=EDGES), heads=6, kv_heads=3, head_dim=12,
                     value_dim=5)  # fmt: skip
    *inputs, dout = case.inputs()
    logits = torch.linspace(-2, 2, 6, dtype=torch.float64)

    def on_rank(cp: ContextParallel, softcap: float | None) -> Any:
        mine = torch.from_numpy(case.slices()[cp.cp_rank])
        given = [*(x[:, mine].clone().requires_grad_() for x in inputs), logits.clone().requires_grad_()]
        kernel = FlashCPU(q_tile=16, k_tile=8, softcap=softcap)
        out = bind(kind, case.layout, case.tensors, cp, kernel=kernel)(*given[:3], sinks=given[3])
        return mine, out.detach(), *torch.autograd.grad(out, given, dout[:, mine])

    for softcap in (None, 0.7):
        right = [x.clone().requires_grad_() for x in (*inputs, logits)]
        out = reference_attention(*right[:3], case.tensors, sinks=right[3], softcap=softcap)
        wanted: tuple[Tensor, ...] = (out.detach(), *torch.autograd.grad(out, right, dout))
        found = run_ranks(1, 3, partial(on_rank, softcap=softcap))
        for mine, *parts, _ in found:
            for part, whole in zip(parts, wanted[:4], strict=True):
                torch.testing.assert_close(part, whole[:, mine], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(sum(parts[-1] for parts in found), wanted[4], rtol=1e-11, atol=1e-11)


def test_a_pack_of_padding(make_mask: Any, make_layout: Any, make_case: Any, attend: Any) -> None:
    """Fails when an output without a visible key is as wide as keys."""
    mask = make_mask([(-1, 0, -1)] * 48)
    case = make_case(mask=mask, layout=make_layout(mask, "contiguous", 3), heads=6, kv_heads=6, value_dim=5)
    for ours in attend(case, CALLS):
        assert [x.shape[-1] for x in ours] == [5, 8, 8, 5]
        assert all(not x.any() for x in ours)

"""Keys and values that attention expands from latents, under every kind, and what travels for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import thread_ranks
import torch
from test_widths import CALLS, EDGES, OVERLAPPED, ROWS
from thread_ranks import run_ranks
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from preshard.schemas.layout import SCHEMES
from preshard.schemas.mask import dense_mask
from preshard.trainer.attention import latent as latents
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels.flash_cpu import FlashCPU
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.reference import reference_attention

LATENT, SHARED, KEYS, VALUES = 10, 4, 12, 7


def inputs_of(heads: int, kv_heads: int, tokens: int = len(ROWS), latent: int = LATENT) -> list[Tensor]:
    """q, latents, shared parts, the matrix, and the output's gradient."""
    rng = torch.Generator().manual_seed(0)
    sizes = (heads, tokens, KEYS), (1, tokens, latent), (1, tokens, SHARED), (latent, kv_heads, KEYS - SHARED + VALUES)
    return [torch.randn(*size, generator=rng, dtype=torch.float64) for size in (*sizes, (heads, tokens, VALUES))]


def right_results(inputs: list[Tensor], mask: MaskTensors, **options: Any) -> tuple[Tensor, ...]:
    *given, dout = inputs
    given = [x.clone().requires_grad_() for x in given]
    out = reference_attention(*given[:3], mask, up=given[3], **options)
    return out.detach(), *torch.autograd.grad(out, given, dout)


def assert_right(found: list[Any], right: tuple[Tensor, ...]) -> None:
    """Compares each rank's rows, and the sum of its gradients of the matrix, with those of the whole pack."""
    close = partial(torch.testing.assert_close, rtol=1e-11, atol=1e-11)
    for mine, *parts, _ in found:
        for part, whole in zip(parts, right[:4], strict=True):
            close(part, whole[:, mine])
    close(sum(parts[-1] for parts in found), right[4])


def on_rank(cp: ContextParallel, case: Any, inputs: list[Tensor], kind: str, options: dict[str, Any]) -> Any:
    mine = torch.from_numpy(case.slices()[cp.cp_rank])
    *rows, up, dout = inputs
    given = [*(x[:, mine].clone().requires_grad_() for x in rows), up.clone().requires_grad_()]
    out = bind(kind, case.layout, case.tensors, cp, **options)(*given[:3], up=given[3])
    return mine, out.detach(), *torch.autograd.grad(out, given, dout[:, mine])


@pytest.mark.parametrize(("ulysses", "ring", "window"), [(1, 1, None), (1, 3, 5), (2, 1, None), (3, 2, None)])
def test_every_kind_expands_latents(
    ulysses: int, ring: int, window: int | None, make_mask: Any, make_layout: Any, make_case: Any
) -> None:
    """Fails when a rank expands other heads than its own, or loses a gradient of latents, of the shared parts or of the
    matrix.
    """
    compare(ulysses, ring, "random", (6, 6), window, make_mask, make_layout, make_case)


@pytest.mark.slow
@pytest.mark.parametrize(("ulysses", "ring"), [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("heads", [(12, 12), (12, 3), (12, 1)])
@pytest.mark.parametrize("scheme", [*SCHEMES, "random"])
def test_every_layout_expands_latents(
    scheme: str, heads: tuple[int, int], ulysses: int, ring: int, make_mask: Any, make_layout: Any, make_case: Any
) -> None:
    """Fails as the test above does, where heads are copied or ranks see nothing of each other."""
    for window in (None, 9):
        compare(ulysses, ring, scheme, heads, window, make_mask, make_layout, make_case)


def compare(
    ulysses: int, ring: int, scheme: str, heads: tuple[int, int], window: int | None, make_mask: Any, make_layout: Any,
    make_case: Any,
) -> None:  # fmt: skip
    """Compares every kind that a mesh and the heads allow with the reference."""
    mask = make_mask(ROWS)
    layout = make_layout(mask, scheme, ring, edges=EDGES, seed=3)
    case = make_case(mask=mask, layout=layout, ulysses=ulysses, window=window, heads=heads[0], kv_heads=heads[1])
    inputs = inputs_of(*heads)
    right = right_results(inputs, case.tensors)
    calls = [call for call in CALLS if heads[1] > ulysses or not call[1].get("overlap")]
    calls += [OVERLAPPED] * (heads[0] % (2 * ulysses * ring) == 0)
    for kind, options in calls:
        assert_right(run_ranks(ulysses, ring, lambda cp, k=kind, o=options: on_rank(cp, case, inputs, k, o)), right)


@pytest.mark.parametrize("kind", ["ring", "gather", "ulysses"])
def test_sinks_and_caps_meet_expanded_keys(kind: str, make_mask: Any, make_layout: Any, make_case: Any) -> None:
    """Fails when a gradient of a sink is taken for one of the matrix, or a frozen matrix is given one."""
    mask = make_mask(ROWS)
    case = make_case(mask=mask, layout=make_layout(mask, "zigzag", 3, edges=EDGES), heads=6)
    *rows, up, dout = inputs_of(6, 3)
    logits = torch.linspace(-2, 2, 6, dtype=torch.float64)
    whole = [*(x.clone().requires_grad_() for x in rows), logits.clone().requires_grad_()]
    out = reference_attention(*whole[:3], case.tensors, sinks=whole[3], up=up, softcap=0.7)
    right = (out.detach(), *torch.autograd.grad(out, whole, dout))

    def frozen(cp: ContextParallel) -> Any:
        mine = torch.from_numpy(case.slices()[cp.cp_rank])
        given = [*(x[:, mine].clone().requires_grad_() for x in rows), logits.clone().requires_grad_()]
        attend = bind(kind, case.layout, case.tensors, cp, kernel=FlashCPU(q_tile=16, k_tile=8, softcap=0.7))
        out = attend(*given[:3], sinks=given[3], up=up)
        return mine, out.detach(), *torch.autograd.grad(out, given, dout[:, mine])

    assert_right(run_ranks(1, 3, frozen), right)


def test_the_reference_is_torchs_own_attention(make_mask: Any) -> None:
    """Fails when the shared part stands before the plain one, or scores are scaled by the width of either."""
    mask = make_mask([(0, 0, -1)] * 20 + [(1, 0, -1)] * 13)
    q, latent, shared, up, _ = inputs_of(4, 2, tokens=33)
    keys, values = [], []
    for head in range(2):
        made = latent[0] @ up[:, head]
        keys.append(torch.cat([made[:, : KEYS - SHARED], shared[0]], dim=-1))
        values.append(made[:, KEYS - SHARED :])
    given = q[None], torch.stack(keys)[None], torch.stack(values)[None]
    right = scaled_dot_product_attention(*given, attn_mask=torch.from_numpy(dense_mask(mask)), enable_gqa=True)[0]
    ours = reference_attention(q, latent, shared, MaskTensors.from_arrays(mask), up=up)
    torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-12)


def test_a_pack_of_padding(make_mask: Any, make_layout: Any, make_case: Any) -> None:
    """Fails when a rank that sees nothing leaves an exchange out, or expands what nobody sees into numbers."""
    mask = make_mask([(-1, 0, -1)] * 48)
    case = make_case(mask=mask, layout=make_layout(mask, "contiguous", 3), heads=6)
    inputs = inputs_of(6, 6, tokens=48)
    for kind, options in CALLS:
        for found in run_ranks(1, 3, lambda cp, k=kind, o=options: on_rank(cp, case, inputs, k, o)):
            assert all(not x.any() for x in found[1:])


@pytest.mark.parametrize(
    ("ulysses", "ring", "kv_heads", "latent", "travels"),
    [
        (1, 1, 6, 10, False),  # nobody to send it to
        (1, 2, 6, 109, True),  # 113 numbers, where 6 keys of 12 and values of 7 are 114
        (1, 2, 6, 110, False),
        (3, 2, 6, 33, True),  # 37, where two of the heads are 38
        (3, 2, 6, 34, False),
        (4, 1, 6, 52, True),  # 56, where three heads, half of them copies, are 57
        (4, 1, 6, 53, False),
    ],
)
def test_what_is_less_travels(ulysses: int, ring: int, kv_heads: int, latent: int, travels: bool) -> None:
    """Fails when latents travel where keys and values of a rank's heads are no more numbers, or the reverse."""
    q, own, shared, up, _ = inputs_of(12, kv_heads, tokens=8, latent=latent)
    cp = ContextParallel(ulysses_degree=ulysses, ring_degree=ring, ulysses_rank=ulysses - 1)
    first, second, matrix = latents.choose_parts(q, own, shared, up, cp)
    if not travels:
        assert ([*first.shape], [*second.shape], matrix) == ([kv_heads, 8, KEYS], [kv_heads, 8, VALUES], None)
        return
    assert first is own
    assert second is shared
    heads = {1: range(6), 3: (4, 5), 4: (4, 5, 5)}[ulysses]
    assert matrix is not None
    assert matrix.equal(up[:, list(heads)])


def test_latents_are_sent_once_and_expanded_in_turns(
    make_mask: Any, make_layout: Any, make_case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when ``head_stride`` no longer bounds the keys that exist at a time, or each turn sends latents again."""
    mask = make_mask(ROWS)
    case = make_case(mask=mask, layout=make_layout(mask, "zigzag", 2, edges=EDGES), heads=6)
    inputs, heads, messages, expand, send = inputs_of(6, 6), [], [], latents.expand, thread_ranks._all_to_all

    def expand_noted(*given: Any) -> Any:
        made = expand(*given)
        heads.append(len(made[0]))
        return made

    def send_noted(received: Tensor, sent: Tensor, *args: Any, **named: Any) -> Any:
        messages.append(sent.shape[1])
        return send(received, sent, *args, **named)

    monkeypatch.setattr(latents, "expand", expand_noted)
    monkeypatch.setattr(thread_ranks, "_all_to_all", send_noted)
    for stride, turns in ((0, [6]), (2, [2, 2, 2]), (4, [4, 2])):
        heads.clear(), messages.clear()
        run_ranks(1, 2, lambda cp, s=stride: on_rank(cp, case, inputs, "gather", {"head_stride": s}))
        assert sorted(heads) == sorted(turns * 4), "two ranks, forward and backward"
        assert messages == [LATENT + SHARED] * 6, "there, there again and back, on two ranks"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "ulysses", "ring"), [("gather", 1, 3), ("ring", 1, 3), ("hybrid", 3, 2)])
def test_latents_lose_no_more_than_expanded_keys(
    kind: str, ulysses: int, ring: int, dtype: torch.dtype, make_mask: Any, make_layout: Any, make_case: Any
) -> None:
    """Fails when sums of gradients over heads, ranks or steps are rounded where those of keys are not."""
    mask = make_mask(ROWS)
    layout = make_layout(mask, "zigzag", ring, edges=EDGES)
    case = make_case(mask=mask, layout=layout, ulysses=ulysses, heads=6, dtype=dtype)
    inputs = [x.to(dtype) for x in inputs_of(6, 6)]
    right = right_results([x.double() for x in inputs], case.tensors)

    def expanded(cp: ContextParallel) -> Any:
        mine = torch.from_numpy(case.slices()[cp.cp_rank])
        *rows, up, dout = inputs
        given = [*(x[:, mine].clone().requires_grad_() for x in rows), up.clone().requires_grad_()]
        keys = latents.expand(given[1], given[2], given[3], KEYS)
        out = bind(kind, layout, case.tensors, cp)(given[0], *keys)
        return mine, out.detach(), *torch.autograd.grad(out, given, dout[:, mine])

    errors = [
        errors_of(run_ranks(ulysses, ring, way), right)
        for way in (lambda cp: on_rank(cp, case, inputs, kind, {}), expanded)
    ]
    near = {torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    for ours, theirs in zip(*errors, strict=True):
        assert ours < near
        assert ours < 1.5 * theirs


def errors_of(found: list[Any], right: tuple[Tensor, ...]) -> list[float]:
    """Relative errors of the output and of each gradient over all ranks."""
    parts = [torch.cat([each[number] for each in found], dim=1).double() for number in range(1, 5)]
    order = torch.argsort(torch.cat([each[0] for each in found]))
    ours = [*(part[:, order] for part in parts), sum(each[5].double() for each in found)]
    return [float((a - b).norm() / b.norm()) for a, b in zip(ours, right, strict=True)]

"""Cases that random packs might miss: each is built, checked to be special, and compared with the reference."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from preshard.schemas.errors import ConfigError
from preshard.schemas.mask import dense_mask
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels import Whole
from preshard.trainer.attention.kernels.flash_cpu import FlashCPU
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.core.mesh import Mesh

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("ring", {}),
    ("gather", {}),
    ("gather", {"exchange": "all"}),
    ("ulysses", {}),
]


pytestmark = pytest.mark.process  # several seconds, most of them without a process


def text(*lengths: int) -> list[tuple[int, int, int]]:
    """Documents of text, one after another; a negative length is padding."""
    return [(doc if n > 0 else -1, 0, -1) for doc, n in enumerate(lengths) for _ in range(abs(n))]


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (8, 2), (8, 1), (12, 3)])
@pytest.mark.parametrize("head_dim", [7, 33])
def test_grouped_heads_and_odd_dims(
    heads: int, kv_heads: int, head_dim: int, make_mask: Any, make_layout: Any, make_case: Any, attend: Any,
    expected: Any, assert_same: Any,
) -> None:  # fmt: skip
    # Ratios 1, 4 and 8, and three key heads on four ranks: shows a query head that reads the wrong key head.
    mask = make_mask(text(37, 91, -16))
    case = make_case(
        mask=mask, layout=make_layout(mask, "random", 2), ulysses=2, heads=heads, kv_heads=kv_heads, head_dim=head_dim
    )
    for ours in attend(case, CALLS):
        assert_same(ours, expected(case))


def test_a_rank_of_padding(
    make_mask: Any, make_layout: Any, make_case: Any, attend: Any, assert_same: Any, expected: Any
) -> None:
    # Rows that see nothing anywhere are exactly 0, forward and backward, on a rank that still takes part in everything.
    mask = make_mask(text(50, 14, -64))
    case = make_case(mask=mask, layout=make_layout(mask, "contiguous", 4))
    assert (mask.doc_ids[case.slices()[3]] == -1).all()
    for ours in attend(case, CALLS):
        assert_same(ours, expected(case))
        assert all(not x[:, 64:].any() for x in ours)


def test_a_pack_of_padding(make_mask: Any, make_layout: Any, make_case: Any, attend_in_processes: Any) -> None:
    # The exchange of needed keys sends nothing: an empty all-to-all must not hang or fail.
    mask = make_mask(text(-64))
    case = make_case(mask=mask, layout=make_layout(mask, "contiguous", 4))
    assert not case.layout.needs.any()
    for ours in attend_in_processes(case, CALLS):
        assert all(not x.any() for x in ours)


def test_ring_steps_without_a_visible_key(
    make_mask: Any, make_layout: Any, make_case: Any, attend: Any, expected: Any, assert_same: Any
) -> None:
    # A skipped step must still pass keys and gradients on.
    mask = make_mask(text(32, 32, 32, 32))
    case = make_case(mask=mask, layout=make_layout(mask, "contiguous", 4))
    slices, allowed = case.slices(), dense_mask(mask)
    assert all(allowed[np.ix_(q, k)].any() == (i == j) for i, q in enumerate(slices) for j, k in enumerate(slices))
    for ours in attend(case, CALLS):
        assert_same(ours, expected(case))


@pytest.mark.parametrize("length", [8, 8 * 37, 8 * 67])
def test_slices_of_one_token_and_of_broken_tiles(
    length: int, make_mask: Any, make_layout: Any, make_case: Any, attend: Any, expected: Any, assert_same: Any
) -> None:
    # Tiles at the end of a slice are shorter than the others, down to a single token.
    mask = make_mask(text(length // 3, length - length // 3))
    case = make_case(mask=mask, layout=make_layout(mask, "random", 4, seed=1), ulysses=2)
    assert len(case.slices()[0]) in (1, 37, 67)
    for ours in attend(case, CALLS):
        assert_same(ours, expected(case))


def test_bfloat16(
    make_mask: Any, make_layout: Any, make_case: Any, attend_in_processes: Any, expected: Any, assert_same: Any
) -> None:
    # The collectives and kernels take bfloat16, and partial results are not added up in it.
    mask = make_mask(text(100, 300, 112))
    case = make_case(mask=mask, layout=make_layout(mask, "random", 4), dtype=torch.bfloat16)
    for ours in attend_in_processes(case, CALLS):
        assert_same(ours, expected(case))


def test_the_same_numbers_every_time(
    make_mask: Any, make_layout: Any, make_case: Any, attend_in_processes: Any
) -> None:
    # Sums over ranks in the order of arrival would differ in the last bit.
    mask = make_mask(text(100, 300, 112))
    case = make_case(mask=mask, layout=make_layout(mask, "random", 4), dtype=torch.float32)
    results = attend_in_processes(case, CALLS * 2)
    for first, second in zip(results[: len(CALLS)], results[len(CALLS) :], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


OVERLAP: tuple[str, dict[str, Any]] = ("ulysses", {"overlap": True})


@pytest.mark.parametrize(("heads", "kv_heads", "ulysses", "ring"), [(8, 8, 2, 1), (12, 6, 1, 2), (8, 2, 2, 2)])
def test_exchanges_that_overlap_change_nothing(
    heads: int, kv_heads: int, ulysses: int, ring: int, make_mask: Any, make_layout: Any, make_case: Any, attend: Any,
    expected: Any, assert_same: Any,
) -> None:  # fmt: skip
    """Fails when a piece of the heads meets another's keys, or gradients of shared key heads are lost or doubled."""
    mask = make_mask(text(37, 91, -16))
    case = make_case(
        mask=mask, layout=make_layout(mask, "random", ring), ulysses=ulysses, heads=heads, kv_heads=kv_heads
    )
    overlapped, plain = attend(case, [OVERLAP, ("ulysses", {})])
    assert_same(overlapped, expected(case))
    assert all(torch.equal(a, b) for a, b in zip(overlapped[:2], plain[:2], strict=True))


class Reads(TorchDispatchMode):
    """Counts numbers that the host asks a device for, which it would wait for."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


def numbers_read(mesh: Mesh, fields: dict[str, Any]) -> dict[str, int]:
    """Number of times that each kind of attention reads a number of a tensor, once it is bound."""
    found = {}
    for kind, options in [*CALLS, OVERLAP]:
        attend = bind(kind, fields["layout"], MaskTensors.from_arrays(fields["mask"]), mesh.cp, **options)
        tokens = len(fields["mask"].doc_ids) // mesh.cp.cp_size
        inputs = [torch.ones(n, tokens, 8, requires_grad=True) for n in (8, 4, 4)]
        with Reads() as reads:
            torch.autograd.grad(attend(*inputs), inputs, torch.ones(8, tokens, 8))
        found[f"{kind} {options}"] = reads.count
    return found


def test_attention_waits_for_no_device(make_mask: Any, make_layout: Any, make_case: Any, gloo_pool: Any) -> None:
    """Fails when a layer asks the device for a number in the middle of a step, so that the host cannot run ahead."""
    mask = make_mask(text(60, 100, -32))
    case = make_case(mask=mask, layout=make_layout(mask, "random", 2), ulysses=2)
    for found in gloo_pool.run(numbers_read, vars(case), ulysses=2, ring=2):
        assert set(found.values()) == {0}, found


class Noting(FlashCPU):
    """A kernel that notes when it computes."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        object.__setattr__(self, "events", events)

    def whole(self, *args: Any) -> Whole:
        self.events.append("compute")  # type: ignore[attr-defined]
        return super().whole(*args)


def events_on_a_rank(mesh: Mesh, fields: dict[str, Any], kind: str) -> list[str]:
    """Order in which messages start and kernels run, in a forward."""
    events: list[str] = []
    send = dist.all_to_all_single

    def note(*args: Any, **kwargs: Any) -> Any:
        events.append("send")
        return send(*args, **kwargs)

    mask = MaskTensors.from_arrays(fields["mask"])
    attend = bind(kind, fields["layout"], mask, mesh.cp, overlap=True, kernel=Noting(events))
    with mock.patch.object(dist, "all_to_all_single", note):
        attend(*(torch.ones(n, len(mask) // mesh.cp.cp_size, 8) for n in (8, 2, 2)))
    return events


@pytest.mark.parametrize(
    ("kind", "degrees", "wanted"),
    [
        ("ulysses", {"ulysses": 2}, "send send compute send compute send"),
        ("gather", {"ring": 2}, "send send compute compute"),
    ],
)
def test_the_next_exchange_is_under_way_while_a_piece_is_computed(
    kind: str, degrees: dict[str, int], wanted: str, make_mask: Any, make_layout: Any, make_case: Any, gloo_pool: Any
) -> None:
    """Fails when a piece's exchange starts only after the one before was computed, so that nothing overlaps."""
    mask = make_mask(text(64))
    layout = make_layout(mask, "zigzag", degrees.get("ring", 1))
    case = make_case(mask=mask, layout=layout, ulysses=degrees.get("ulysses", 1))
    for events in gloo_pool.run(events_on_a_rank, vars(case), kind, **degrees):
        assert events == wanted.split()


def test_a_pack_of_padding_overlaps(make_mask: Any, make_layout: Any, make_case: Any, attend_in_processes: Any) -> None:
    """Fails when pieces without a visible key leave out a message."""
    mask = make_mask(text(-64))
    case = make_case(mask=mask, layout=make_layout(mask, "contiguous", 2), ulysses=2)
    [ours] = attend_in_processes(case, [OVERLAP])
    assert all(not x.any() for x in ours)


def two_layers(mesh: Mesh, fields: dict[str, Any], kind: str, recompute: bool) -> torch.Tensor:
    """Gradient of the input of two layers that share what is bound, the second recomputed in the backward or not."""
    attend = bind(kind, fields["layout"], MaskTensors.from_arrays(fields["mask"]), mesh.cp)
    rank_tokens = len(fields["mask"].doc_ids) // mesh.cp.cp_size
    x = torch.ones(4, rank_tokens, 8, dtype=torch.float64).cumsum(dim=1).sin().requires_grad_()
    hidden = attend(x, x.sin(), x.cos())
    out = checkpoint(attend, hidden, x, hidden, use_reentrant=False) if recompute else attend(hidden, x, hidden)
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    return grad


@pytest.mark.parametrize("kind", ["ring", "gather", "ulysses"])
def test_layers_share_what_is_bound(
    kind: str, make_mask: Any, make_layout: Any, make_case: Any, gloo_pool: Any
) -> None:
    # Anything that a layer leaves behind for the next one, or for its own recomputation, would change the gradient.
    mask = make_mask(text(20, 44))
    case = make_case(mask=mask, layout=make_layout(mask, "random", 2))
    kept = gloo_pool.run(two_layers, vars(case), kind, False, ring=2)
    again = gloo_pool.run(two_layers, vars(case), kind, True, ring=2)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
    assert all(bool(grad.abs().sum() > 0) for grad in kept)


def odd_uses(mesh: Mesh, fields: dict[str, Any], kind: str, options: dict[str, Any]) -> dict[str, bool]:
    """Outcomes of what a model may do with a bound function besides a plain forward and backward."""
    attend = bind(kind, fields["layout"], MaskTensors.from_arrays(fields["mask"]), mesh.cp, **options)
    tokens = len(fields["mask"].doc_ids) // mesh.cp.cp_size
    rng = torch.Generator().manual_seed(mesh.cp.cp_rank)
    sizes = (fields["heads"], fields["kv_heads"], fields["kv_heads"], fields["heads"])
    q, k, v, dout = (torch.randn(tokens, n, 8, generator=rng, dtype=torch.float64) for n in sizes)
    strided = [x.transpose(0, 1) for x in (q, k, v)]
    plain = [x.contiguous().requires_grad_() for x in strided]
    out = attend(*plain)
    wanted = torch.autograd.grad(out, plain, dout.transpose(0, 1).contiguous())
    with torch.no_grad():
        silent = attend(*plain)
    only_k = strided[1].clone().requires_grad_()
    (dk,) = torch.autograd.grad(attend(strided[0], only_k, strided[2]), only_k, dout.transpose(0, 1))
    refusal = ""
    (dq,) = torch.autograd.grad(attend(*plain).square().sum(), plain[:1], create_graph=True)
    try:
        dq.sum().backward()
    except RuntimeError as error:
        refusal = str(error)
    return {
        "strided inputs": torch.equal(attend(*strided), out),
        "no_grad": torch.equal(silent, out) and not silent.requires_grad,
        "a gradient of k alone, of a strided output's": torch.equal(dk, wanted[1]),
        "a second derivative is refused": "once_differentiable" in refusal,
    }


@pytest.mark.parametrize(("kind", "options"), [*CALLS, OVERLAP])
def test_odd_uses(
    kind: str, options: dict[str, Any], make_mask: Any, make_layout: Any, make_case: Any, gloo_pool: Any
) -> None:
    # Fails when a collective takes a view for its storage, or a second derivative is silently zero.
    mask = make_mask(text(60, 100, -32))
    case = make_case(mask=mask, layout=make_layout(mask, "random", 2), ulysses=2)
    for good in gloo_pool.run(odd_uses, vars(case), kind, options, ulysses=2, ring=2):
        assert all(good.values()), good


def test_eight_ranks_of_which_most_see_nothing(
    make_mask: Any, make_layout: Any, make_case: Any, attend: Any, expected: Any, assert_same: Any
) -> None:
    # One query head, wide heads, and five ranks that get no key: they compute nothing and pass everything on.
    mask = make_mask(text(-20, 24, -76, 8))
    case = make_case(mask=mask, layout=make_layout(mask, "contiguous", 8), heads=1, kv_heads=1, head_dim=300)
    assert sum(bool((mask.doc_ids[rows] >= 0).any()) for rows in case.slices()) == 3
    for ours in attend(case, CALLS[:3]):
        assert_same(ours, expected(case))


def test_a_pack_of_one_token(make_mask: Any, make_layout: Any, make_case: Any, attend: Any, expected: Any) -> None:
    # Tiles are one by one, and the output is the value.
    mask = make_mask(text(1))
    layout = make_layout(mask, "random", 1)
    case = make_case(mask=mask, layout=layout, heads=2, kv_heads=1)
    for ours in attend(case, CALLS):
        torch.testing.assert_close(ours[0], case.inputs()[2].expand(2, 1, -1))


def test_what_cannot_be_bound_is_an_error(make_mask: Any, make_layout: Any) -> None:
    mask = make_mask(text(64))
    layout, tensors = make_layout(mask, "contiguous", 2), MaskTensors.from_arrays(mask)
    with pytest.raises(ConfigError, match="'dense'; take one of ulysses, ring, gather"):
        bind("dense", layout, tensors, ContextParallel())
    with pytest.raises(ConfigError, match="'reference' on 2 context-parallel ranks; it runs on 1"):
        bind("reference", layout, tensors, ContextParallel(ring_degree=2))
    with pytest.raises(
        ConfigError, match="ring_degree 2; the mesh has 1: take the layout contiguous with ring_degree 1"
    ):
        bind("ring", layout, tensors, ContextParallel())

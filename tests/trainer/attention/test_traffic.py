"""Traffic of each kind, counted at the collectives and compared with the table of docs/attention.md."""

from __future__ import annotations

from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

from preshard.schemas.layout import slice_positions
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ALL_GATHER, ContextParallel
from preshard.trainer.attention.gather import plan_exchange
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.core.mesh import Mesh


def bytes_sent(
    mesh: Mesh, fields: dict[str, Any], kind: str, options: dict[str, Any], latent: int = 0, shared: int = 0
) -> tuple[int, int]:
    """Bytes that this rank sends to others in a forward, and in a backward. With widths of a latent and of the part of
    keys that heads share, attention is given these and what expands them.
    """
    sent = [0]

    def count_all_to_all(
        out: Any, data: Any, out_sizes: Any = None, in_sizes: Any = None, group: Any = None, async_op: bool = False
    ) -> Any:
        ranks = dist.get_world_size(group)
        sizes = in_sizes or [len(data) // ranks] * ranks
        sent[0] += (len(data) - sizes[dist.get_group_rank(group, dist.get_rank())]) * data[:1].nbytes
        return all_to_all(out, data, out_sizes, in_sizes, group=group, async_op=async_op)

    def count_all_gather(out: Any, data: Any, group: Any = None, async_op: bool = False) -> Any:
        sent[0] += data.nbytes * (dist.get_world_size(group) - 1)
        return all_gather(out, data, group=group, async_op=async_op)

    def count_p2p(operations: list[Any]) -> Any:
        sent[0] += sum(operation.tensor.nbytes for operation in operations if operation.op is dist.isend)
        return p2p(operations)

    all_to_all, all_gather, p2p = dist.all_to_all_single, getattr(dist, ALL_GATHER), dist.batch_isend_irecv
    rank_tokens = len(fields["mask"].doc_ids) // mesh.cp.cp_size
    keys, kv_heads, values = fields["head_dim"], fields["kv_heads"], fields["value_dim"] or fields["head_dim"]
    of_keys = [(1, latent), (1, shared)] if latent else [(kv_heads, keys), (kv_heads, values)]
    inputs = [
        torch.ones(n, rank_tokens, width, dtype=fields["dtype"], requires_grad=True)
        for n, width in ((fields["heads"], keys), *of_keys)
    ]
    named = {}
    if latent:
        sizes = latent, kv_heads, keys - shared + values
        named["up"] = torch.ones(*sizes, dtype=fields["dtype"], requires_grad=True)
    mask = MaskTensors.from_arrays(fields["mask"]).within(fields["window"])
    attend = bind(kind, fields["layout"], mask, mesh.cp, **options)
    with (
        mock.patch.object(dist, "all_to_all_single", count_all_to_all),
        mock.patch.object(dist, ALL_GATHER, count_all_gather),
        mock.patch.object(dist, "batch_isend_irecv", count_p2p),
    ):
        out = attend(*inputs, **named)
        forward = sent[0]
        torch.autograd.grad(out.sum(), [*inputs, *named.values()])
    return forward, sent[0] - forward


HEADS, KV_HEADS, HEAD_DIM, TOKENS = 8, 2, 16, 512


@pytest.fixture
def sent(gloo_pool: Any, make_mask: Any, make_layout: Any, make_case: Any) -> Any:
    """Bytes that each rank sends, forward and backward, for one document in bfloat16."""

    def run(
        kind: str, ulysses: int, ring: int, *, window: int | None = None, value_dim: int | None = None,
        latent: tuple[int, int] = (0, 0), **options: Any,
    ) -> list[tuple[int, int]]:  # fmt: skip
        mask = make_mask([(0, 0, -1)] * TOKENS)
        case = make_case(
            mask=mask, layout=make_layout(mask, "contiguous", ring), ulysses=ulysses, heads=HEADS, kv_heads=KV_HEADS,
            head_dim=HEAD_DIM, value_dim=value_dim, dtype=torch.bfloat16, window=window,
        )  # fmt: skip
        counted: list[tuple[int, int]] = gloo_pool.run(
            bytes_sent, vars(case), kind, options, *latent, ulysses=ulysses, ring=ring
        )
        return counted

    return run


def test_bytes_of_each_kind(sent: Any) -> None:
    # Shows a second copy of the keys, or float32 where bfloat16 would do.
    keys = 2 * KV_HEADS * HEAD_DIM * TOKENS  # keys and values of the pack, in numbers
    queries = HEADS * HEAD_DIM * TOKENS
    ring = 4
    slice_of_keys = keys // ring
    assert sent("ring", 1, ring) == [(2 * (ring - 1) * slice_of_keys, (2 + 4) * (ring - 1) * slice_of_keys)] * ring
    for overlap in (False, True):
        assert (
            sent("gather", 1, ring, exchange="all", overlap=overlap)
            == [(2 * (ring - 1) * slice_of_keys, (2 + 4) * (ring - 1) * slice_of_keys)] * ring
        )
    # Under a causal mask rank s sends its keys to the ranks behind it, and gets gradients back.
    assert sent("gather", 1, ring) == [
        (2 * (ring - 1 - s) * slice_of_keys, (2 * (ring - 1 - s) + 4 * s) * slice_of_keys) for s in range(ring)
    ]
    assert sent("gather", 1, ring, overlap=True) == sent("gather", 1, ring)
    there_and_back = 2 * (2 * queries + 2 * keys) * 3 // 4 // 4  # two key heads on four ranks are sent twice
    assert sent("ulysses", 4, 1) == [(there_and_back, there_and_back)] * 4
    assert sent("ulysses", 4, 1, overlap=True) == [(there_and_back, there_and_back)] * 4


def test_bytes_of_two_widths(sent: Any) -> None:
    """Fails when values are sent as wide as keys, or queries as narrow as values."""
    both, ring = HEAD_DIM + 10, 4
    slice_of_keys = KV_HEADS * both * TOKENS // ring
    right = [(2 * (ring - 1) * slice_of_keys, (2 + 4) * (ring - 1) * slice_of_keys)] * ring
    assert sent("ring", 1, ring, value_dim=10) == right
    assert sent("gather", 1, ring, value_dim=10, exchange="all") == right
    there_and_back = 2 * (HEADS + 2 * KV_HEADS) * both * TOKENS * 3 // 4 // 4
    for overlap in (False, True):
        assert sent("ulysses", 4, 1, value_dim=10, overlap=overlap) == [(there_and_back, there_and_back)] * 4


def test_bytes_of_a_latent(sent: Any) -> None:
    """Fails when expanded keys travel where a latent is less, a latent where it is more, or either twice."""
    latent, widths, ring = 11 + 5, {"value_dim": 10, "latent": (11, 5)}, 4
    slice_of_latents = latent * TOKENS // ring
    right = [(2 * (ring - 1) * slice_of_latents, (2 + 4) * (ring - 1) * slice_of_latents)] * ring
    assert latent < KV_HEADS * (HEAD_DIM + 10)
    assert sent("ring", 1, ring, **widths) == sent("gather", 1, ring, exchange="all", **widths) == right
    assert sent("gather", 1, ring, **widths) == [
        (2 * (ring - 1 - s) * slice_of_latents, (2 * (ring - 1 - s) + 4 * s) * slice_of_latents) for s in range(ring)
    ]
    heads = 2 * HEADS * (HEAD_DIM + 10) * TOKENS // 4 // 2
    both = heads + 2 * latent * TOKENS // 4  # a copy for the other rank of the axis
    assert sent("hybrid", 2, 2, **widths) == [(both + 2 * latent * TOKENS // 2, both + 6 * latent * TOKENS // 2)] * 4
    wide = {"value_dim": 10, "latent": (48, 5)}
    assert sent("ring", 1, ring, **wide) == sent("ring", 1, ring, value_dim=10)
    assert sent("hybrid", 2, 2, **wide) == sent("hybrid", 2, 2, value_dim=10)


def test_a_hybrid_ring_sends_no_more_keys_for_its_heads(sent: Any) -> None:
    # Each of the two ranks at one place in the ring sends the keys of its own heads.
    keys, queries = 2 * KV_HEADS * HEAD_DIM * TOKENS, HEADS * HEAD_DIM * TOKENS
    heads = 2 * (2 * queries + keys) // 4 // 2
    assert sent("hybrid", 2, 2) == [(heads + 2 * keys // 4, heads + (2 + 4) * keys // 4)] * 4


def test_a_window_moves_what_it_sees(sent: Any) -> None:
    """Fails when layers with a window move keys as layers without do: to all ranks behind."""
    number, ring = 2 * KV_HEADS * HEAD_DIM, 4
    slice_of_keys, block = number * TOKENS // ring, number * 8
    assert sent("ring", 1, ring, window=2) == [(2 * slice_of_keys, (2 + 4) * slice_of_keys)] * ring
    assert sent("ring", 1, ring, window=1) == [(0, 0)] * ring
    assert sent("gather", 1, ring, window=9) == [
        (2 * block * (s < 3), 2 * block * (s < 3) + 4 * block * (s > 0)) for s in range(ring)
    ]


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("scheme", ["contiguous", "zigzag", "balanced_ring", "balanced_gather", "random"])
def test_needed_keys_are_all_that_are_seen_and_no_block_more(
    scheme: str, window: int | None, make_mask: Any, make_layout: Any
) -> None:
    # Too few would be a wrong result; all of them would be the other exchange.
    rows = [(doc, 0, -1) for doc in range(8) for _ in range(32)]
    mask, ring = make_mask(rows), 4
    layout = make_layout(mask, scheme, ring, seed=3)
    fewer = 0
    for rank in range(ring):
        group: Any = object()
        cp = ContextParallel(ring_degree=ring, ring_rank=rank, ring_group=group)
        tensors = MaskTensors.from_arrays(mask).within(window)
        got = plan_exchange("needed", layout, tensors, cp).positions
        every = plan_exchange("all", layout, tensors, cp).positions
        assert len(every) == 256
        mine = slice_positions(layout.runs, rank)
        seen = {k for q in mine for k in range(max(0, q - (window or q) + 1), q + 1) if k // 32 == q // 32}
        assert len(np.unique(got)) == len(got)
        assert set(np.unique(got // 8)) == {k // 8 for k in seen}
        assert set(got) >= seen
        fewer += len(got) < 256
    assert fewer


@pytest.mark.parametrize("exchange", ["needed", "all"])
def test_gathered_keys_lie_as_a_kernel_loads_them(
    exchange: Any, make_mask: Any, make_layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a kernel is given views of the message: their strides follow from no length, and FlexAttention's
    loads of keys on a GPU are then no longer of 16 bytes.
    """
    mask = make_mask([(0, 0, -1)] * 64)
    cp = ContextParallel(ring_degree=2, ring_rank=1, ring_group=cast("Any", object()))
    monkeypatch.setattr(dist, "all_to_all_single", lambda *_args, **_named: None)
    monkeypatch.setattr(dist, ALL_GATHER, lambda *_args, **_named: None)
    keys = plan_exchange(exchange, make_layout(mask, "zigzag", 2, seed=3), MaskTensors.from_arrays(mask), cp)
    gathered = keys.gather(torch.zeros(2, 32, 4), torch.zeros(2, 32, 4))()
    assert len(keys.positions) > 32
    assert [len(x) for x in gathered] == [2, 2]
    assert all(x.is_contiguous() for x in gathered)


def collectives(mesh: Mesh, fields: dict[str, Any], stride: int) -> tuple[int, int, int]:
    """Messages that a rank starts in a forward and in a backward, and bytes of both."""
    sizes: list[int] = []
    real = dist.all_to_all_single

    def noted(out: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(data.nbytes)
        return real(out, data, *args, **kwargs)

    mask = MaskTensors.from_arrays(fields["mask"])
    attend = bind("gather", fields["layout"], mask, mesh.cp, head_stride=stride)
    inputs = [torch.ones(n, len(mask) // 2, 8, requires_grad=True) for n in (8, 4, 4)]
    with mock.patch.object(dist, "all_to_all_single", noted):
        out = attend(*inputs)
        forward = len(sizes)
        torch.autograd.grad(out.sum(), inputs)
    return forward, len(sizes) - forward, sum(sizes)


def test_a_turn_is_one_message_there_and_two_back(
    make_mask: Any, make_layout: Any, make_case: Any, gloo_pool: Any
) -> None:
    """Fails when turns send more bytes than one exchange of all heads, or more messages than turns ask for."""
    mask = make_mask([(0, 0, -1)] * 100 + [(1, 0, -1)] * 60)
    case = make_case(mask=mask, layout=make_layout(mask, "zigzag", 2))
    plain, three, one = (gloo_pool.run(collectives, vars(case), stride, ring=2) for stride in (0, 3, 1))
    assert [rank[:2] for rank in plain + three + one] == [(1, 2)] * 2 + [(2, 4)] * 2 + [(4, 8)] * 2
    assert [rank[2] for rank in plain] == [rank[2] for rank in three] == [rank[2] for rank in one]

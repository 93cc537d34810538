"""Kernels on parts of the keys, merged, against the reference on all of them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from dense_kernel import DenseKernel, DenseMask
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from preshard.schemas import layout
from preshard.schemas.errors import ConfigError
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention import tiles as tiles_of
from preshard.trainer.attention.kernels import Kernel, check_kernel, kernel_for
from preshard.trainer.attention.kernels.flash_cpu import FlashCPU
from preshard.trainer.attention.kernels.flex import Flex, block_mask, compiled_attention
from preshard.trainer.attention.kernels.whole import accumulation_dtype
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.reference import reference_attention
from preshard.trainer.attention.ring import merge
from preshard.trainer.attention.tiles import list_tiles

KERNELS = {
    "flash": FlashCPU(),
    "flash in small tiles": FlashCPU(q_tile=16, k_tile=8),
    "dense": DenseKernel(),
    "flash, capped": FlashCPU(q_tile=16, k_tile=8, softcap=0.7),
}


WINDOWS = st.sampled_from([None, 1, 20])
WIDTHS = [(1, 1), (7, 20), (12, 8), (33, 33), (33, 7)]
"""Widths of keys, and of values."""


def random_inputs(
    heads: int, kv_heads: int, seq_len: int, head_dim: int, value_dim: int | None = None
) -> list[torch.Tensor]:
    """q, k, v and dout in float64."""
    rng, values = torch.Generator().manual_seed(seq_len), value_dim or head_dim
    sizes = (heads, head_dim), (kv_heads, head_dim), (kv_heads, values), (heads, values)
    return [torch.randn(n, seq_len, d, generator=rng, dtype=torch.float64) for n, d in sizes]


def in_parts(
    kernel: Kernel,
    mask: MaskArrays,
    parts: list[np.ndarray],
    inputs: list[torch.Tensor],
    window: int | None = None,
) -> Any:
    """Output, log-sum-exp and gradients when the keys come in parts, as in a ring."""
    tensors = MaskTensors.from_arrays(mask).within(window)
    q, k, v, dout = inputs
    queries, dtype = tensors.at(np.arange(mask.seq_len)), accumulation_dtype(q.dtype)
    out, lse = torch.zeros(dout.shape, dtype=dtype), torch.full(q.shape[:2], -torch.inf, dtype=dtype)
    prepared = [kernel.prepare(queries, tensors.at(part)) for part in parts]
    for part, ready in zip(parts, prepared, strict=True):
        more, more_lse = kernel.forward(q, k[:, part], v[:, part], ready)
        out, lse = merge(out, lse, more.to(dtype), more_lse)
    out = out.to(q.dtype)
    dq, dk, dv = (torch.zeros(x.shape, dtype=dtype) for x in (q, k, v))
    for part, ready in zip(parts, prepared, strict=True):
        more_dq, dk[:, part], dv[:, part] = kernel.backward(dout, q, k[:, part], v[:, part], out, lse, ready)
        dq += more_dq
    return (out, dq, dk, dv), lse


def whole(mask: MaskArrays, inputs: list[torch.Tensor], window: int | None = None, softcap: float | None = None) -> Any:
    """The same by the reference."""
    q, k, v, dout = inputs
    wanted = [x.clone().requires_grad_() for x in (q, k, v)]
    out = reference_attention(*wanted, MaskTensors.from_arrays(mask).within(window), softcap=softcap)
    return out.detach(), *torch.autograd.grad(out, wanted, dout)


@pytest.mark.parametrize("name", KERNELS)
def test_parts_add_up_to_the_whole(name: str, packs: Any) -> None:
    # Covers the merge, the backward by the merged log-sum-exp, and in the dense kernel the backward from a forward.
    met = {"a row sees nothing of a part": 0, "a row sees nothing": 0, "wider keys": 0, "wider values": 0}

    @settings(max_examples=10, deadline=None, derandomize=True, database=None)
    @given(packs(1, 4), st.integers(0, 2**16), st.integers(1, 4), st.sampled_from(WIDTHS), WINDOWS)
    def check(pack: Any, seed: int, n_parts: int, widths: tuple[int, int], window: int | None) -> None:
        mask = pack[0]
        parts = np.array_split(np.random.default_rng(seed).permutation(mask.seq_len), n_parts)
        inputs = random_inputs(4, 2, mask.seq_len, *widths)
        ours, lse = in_parts(KERNELS[name], mask, parts, inputs, window)
        softcap = getattr(KERNELS[name], "softcap", None)
        for mine, right in zip(ours, whole(mask, inputs, window, softcap), strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)
        unseen = mask.doc_ids < 0
        assert ((lse == -torch.inf) == torch.from_numpy(unseen)).all()
        met["a row sees nothing"] += int(unseen.sum())
        met["a row sees nothing of a part"] += n_parts > 1
        met["wider keys"] += widths[0] > widths[1]
        met["wider values"] += widths[0] < widths[1]

    check()
    assert all(met.values()), met


@pytest.mark.parametrize("name", ["flash", "dense", "flash, capped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(name: str, dtype: torch.dtype) -> None:
    zero = np.zeros(300, np.int32)
    mask = MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1)
    inputs = [x.to(dtype) for x in random_inputs(4, 2, 300, 16)]
    ours, lse = in_parts(KERNELS[name], mask, np.array_split(np.arange(300), 3), inputs)
    near = {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    assert lse.dtype == torch.float32
    assert ours[0].dtype == dtype
    softcap = getattr(KERNELS[name], "softcap", None)
    for mine, right in zip(ours, whole(mask, [x.double() for x in inputs], softcap=softcap), strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=near, atol=near)


def test_a_row_whose_first_thousand_keys_are_hidden() -> None:
    # ATen processes keys in blocks of 512, and a row may see nothing in the first blocks of its tile's keys.
    doc = np.repeat(np.array([0, 1], np.int32), 1100)
    order = np.arange(2200)
    doc[[1099, 2199]] = [1, 0]  # the tiles at the edge and at the end see keys of both documents
    zero = np.zeros(2200, np.int32)
    mask = MaskArrays(doc_ids=doc, branch_ids=zero, group_ids=zero - 1)
    inputs = random_inputs(1, 1, 2200, 8)
    ours, _ = in_parts(FlashCPU(), mask, [order], inputs)
    for mine, right in zip(ours, whole(mask, inputs), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)


def test_whole_tiles_with_a_hidden_one_between() -> None:
    """Fails when keys of another branch are seen, as the tiles before and after are seen whole."""
    branches = np.repeat(np.array([0, 1, 2, 2], np.int32), 16)
    mask = MaskArrays(doc_ids=0 * branches, branch_ids=branches, group_ids=0 * branches - 1)
    inputs = random_inputs(1, 1, 64, 8)
    ours, _ = in_parts(FlashCPU(q_tile=16, k_tile=16), mask, [np.arange(48), np.arange(48, 64)], inputs)
    for mine, right in zip(ours, whole(mask, inputs), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


def test_memory_does_not_grow_with_the_square() -> None:
    # 8,192 x 8,192 numbers would be 268 MB; a tile's own mask is 128 x its keys.
    seq_len, document = 1 << 13, 1 << 8
    zero = np.zeros(seq_len, np.int32)
    mask = MaskArrays(doc_ids=(np.arange(seq_len) // document).astype(np.int32), branch_ids=zero, group_ids=zero - 1)
    inputs = [x.float() for x in random_inputs(1, 1, seq_len, 4)]
    with Largest() as largest:
        in_parts(FlashCPU(), mask, [np.arange(seq_len)], inputs)
    assert largest.numel <= max(seq_len * 4, 128 * (document + 128))


def pairs_in_tables(made: BlockMask) -> list[torch.Tensor]:
    """Number of times that a kernel reading the tables computes each pair: by those of queries and by those of keys."""
    lengths, tiles = made.shape[-2:], made.BLOCK_SIZE
    sizes = [-(-length // tile) for length, tile in zip(lengths, tiles, strict=True)]
    rule = made.mask_mod(*torch.zeros(2, 1, dtype=torch.int64), *np.ix_(*map(np.arange, lengths))).int()
    tables, computed = made.as_tuple()[2:10], []
    for by_key, pairs in enumerate((tables[:4], tables[4:])):
        found = torch.zeros(2, *sizes[:: -1 if by_key else 1], dtype=torch.int32)
        for of_kind, counts, indices in zip(found, pairs[::2], pairs[1::2], strict=True):
            for place, (count, columns) in enumerate(zip(counts[0, 0].tolist(), indices[0, 0], strict=True)):
                of_kind[place] += torch.bincount(columns[:count], minlength=of_kind.shape[1])
        some, every = (found.mT if by_key else found).repeat_interleave(tiles[0], 1).repeat_interleave(tiles[1], 2)
        computed.append(some[: lengths[0], : lengths[1]] * rule + every[: lengths[0], : lengths[1]])
    return computed


def test_flex_has_the_same_tiles(packs: Any) -> None:
    # A table shifted by one, full tiles taken for partial ones, or another rule would be wrong only on a GPU; and so
    # would tables by keys that are not those by queries, or whose rows are longer than they are wide.
    met = {"full": 0, "narrow": 0, "not square": 0}

    @settings(max_examples=30, deadline=None, derandomize=True, database=None)
    @given(packs(1, 4), st.integers(0, 2**16), st.sampled_from([1, 4, 16, 64]), WINDOWS)
    def check(pack: Any, seed: int, tile: int, window: int | None) -> None:
        seq_len, rng = pack[0].seq_len, np.random.default_rng(seed)
        whole = MaskTensors.from_arrays(pack[0]).within(window)
        chosen = [np.sort(rng.permutation(seq_len)[: rng.integers(1, seq_len + 1)]) for _ in range(2)]
        tiles = list_tiles(*(whole.at(places) for places in chosen), q_tile=tile, k_tile=tile)
        made, lengths = block_mask(tiles), [len(places) for places in chosen]
        assert (made.shape[-2:], made.BLOCK_SIZE) == (tuple(lengths), (tile, tile))
        rows, columns = (-(-length // tile) for length in lengths)
        allowed = torch.from_numpy(dense_mask(pack[0], *chosen, window=window)).int()
        for by_key, pairs in enumerate(pairs_in_tables(made)):
            assert torch.equal(pairs, allowed), "each allowed pair once, and no other"
            partial, full = made.as_tuple()[3 + 4 * by_key : 7 + 4 * by_key : 2]
            assert partial.stride() == full.stride(), "torch 2.10 reads both with the strides of the first"
            assert partial.shape[-1] >= 2, "a width of 1 is another graph"
            met["narrow"] += partial.shape[-1] < (rows if by_key else columns)
        met["full"] += int(tiles.n_full.sum())
        met["not square"] += rows != columns

    check()
    assert all(met.values()), met


class TableKernel(DenseKernel):
    """Computes the pairs that the GPU's kernel reads from its tables."""

    def __init__(self, met: set[int]) -> None:
        object.__setattr__(self, "met", met)

    def prepare(self, queries: MaskTensors, keys: MaskTensors, listed: object = None) -> DenseMask:  # noqa: ARG002
        made = Flex().prepare(queries, keys).block_mask
        self.met.add(made.BLOCK_SIZE[0])
        by_query, by_key = pairs_in_tables(made)
        assert torch.equal(by_query, by_key)
        return DenseMask(allowed=by_query == 1)


@pytest.mark.parametrize(
    ("scheme", "ulysses", "window"),
    [
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("zigzag", 1, None), ("balanced_gather", 1, 400))),
        ("random", 2, 400),
    ],
)
def test_tiles_of_512_are_exact_in_every_kind(
    scheme: str, ulysses: int, window: int | None, make_mask: Any, make_layout: Any, make_case: Any, attend: Any,
    expected: Any, assert_same: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Fails when a part of a long pack, whose tables would be too large in tiles of 128, meets other pairs."""
    for module in (layout, tiles_of):
        monkeypatch.setattr(module, "MOST_TABLES", 150)
    rows = [(0, 0, -1)] * 300 + [(0, 0, 3)] * 230 + [(0, 0, -1)] * 70 + [(0, 1, -1)] * 110 + [(0, 2, -1)] * 40
    mask = make_mask([*rows, *[(-1, 0, -1)] * 50, *[(1, 0, -1)] * 736])
    dealt = make_layout(mask, scheme, 2, edges=np.array([0, 800, 1536]))
    case = make_case(mask=mask, layout=dealt, ulysses=ulysses, window=window, heads=2, kv_heads=1)
    met: set[int] = set()
    kinds = ["gather", "hybrid", *["ulysses"][: ulysses == 1]]
    right = expected(case)
    for ours in attend(case, [(kind, {"kernel": TableKernel(met)}) for kind in kinds]):
        assert_same(ours, right)
    assert met == {256, 512}


@pytest.mark.parametrize(
    ("kv_heads", "window", "softcap", "value_dim"),
    [(1, None, None, 24), pytest.param(4, 70, None, 16, marks=pytest.mark.slow), (2, 70, 0.7, 16)],
)
def test_flex_without_a_gpu(
    kv_heads: int, window: int | None, softcap: float | None, value_dim: int, make_mask: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # The rule inside the tiles, the scale, grouped heads, lengths that are not a multiple of a tile, and the backward
    # through output and log-sum-exp. Torch refuses this on a CPU, as it has no fast kernel; its plain one is correct.
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    rows = [(0, 0, -1)] * 50 + [(0, 0, 3)] * 40 + [(0, 1, -1)] * 60 + [(0, 2, -1)] * 30 + [(-1, 0, -1)] * 20
    mask = make_mask(rows + [(1, 0, -1)] * 107)
    inputs = random_inputs(4, kv_heads, mask.seq_len, 16, value_dim)
    parts = np.split(np.roll(np.arange(mask.seq_len), 77), [177])
    with warnings.catch_warnings(action="ignore"):
        ours, lse = in_parts(Flex(attention=flex_attention, softcap=softcap), mask, parts, inputs, window)
    for mine, right in zip(ours, whole(mask, inputs, window, softcap), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)
    assert ((lse == -torch.inf) == torch.from_numpy(mask.doc_ids < 0)).all()


def test_flex_is_compiled_once_for_all_batches() -> None:
    """Fails when a mask, a length or a window is a constant of the graph: each batch would compile it again, for
    minutes, and past a limit torch would give up compiling and make a dense matrix of scores.
    """
    graphs, numbers = [], []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        numbers.extend(each for each in inputs if isinstance(each, torch.Tensor) and each.ndim == 0)
        return graph.forward

    kernels = {cap: Flex(attention=compiled_attention(backend), softcap=cap) for cap in (None, 0.7)}
    sizes = ((300, 300, 100, None), (300, 200, 150, None), (900, 450, 299, None), (513, 513, 64, None))
    cases = [(None, *size) for size in (*sizes, (300, 300, 100, 40), (900, 450, 299, 60))]
    for cap, length, n_queries, edge, window in (*cases, (0.7, 300, 300, 100, None), (0.7, 900, 450, 299, None)):
        kernel = kernels[cap]
        zero, doc = np.zeros(length, np.int32), (np.arange(length) >= edge).astype(np.int32)
        mask = MaskArrays(doc_ids=doc, branch_ids=zero, group_ids=zero - 1)
        tensors = MaskTensors.from_arrays(mask).within(window)
        q, k, v, _ = (x.float() for x in random_inputs(4, 2, length, 16))
        queries, every = tensors.at(np.arange(n_queries)), tensors.at(np.arange(length))
        out, _ = kernel.forward(q[:, :n_queries].contiguous(), k, v, kernel.prepare(queries, every))
        right = reference_attention(q, k, v, tensors, softcap=cap)[:, :n_queries]
        torch.testing.assert_close(out, right, rtol=1e-5, atol=1e-5)
    assert len(graphs) == 3, "one without a window, one with, one with a cap"
    assert not numbers, "a cap that is an input cannot be lowered for CUDA"


@pytest.mark.parametrize("tile", [128, pytest.param(256, marks=pytest.mark.slow)])
def test_flex_is_told_of_whole_tiles(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a kernel checks each load against lengths that are whole tiles, or trusts lengths that are not: it
    would read past the end. And when such lengths make more than one graph more.
    """
    monkeypatch.setattr(tiles_of, "table_tile", lambda *_: tile)
    monkeypatch.setattr(tiles_of, "MOST_TABLES", 0)
    graphs, told = [], []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = compiled_attention(backend)

    def attention(*args: Any, **kwargs: Any) -> Any:
        told.append(kwargs["kernel_options"].get("IS_DIVISIBLE", False))
        return compiled(*args, **kwargs)

    kernel, zero = Flex(attention=attention), np.zeros(8 * tile, np.int32)
    every = MaskTensors.from_arrays(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1))
    whole = [(2 * tile, 4 * tile), (3 * tile, 8 * tile)]
    for n_queries, n_keys in (*whole, (2 * tile + 128, 4 * tile), (2 * tile, 500), (300, 4 * tile), (900, 700)):
        queries, keys = every.at(np.arange(n_queries)), every.at(np.arange(n_keys))
        q, k, v, _ = (x.float() for x in random_inputs(4, 2, 8 * tile, 16))
        out, _ = kernel.forward(q[:, :n_queries], k[:, :n_keys], v[:, :n_keys], kernel.prepare(queries, keys))
        assert out.isfinite().all()
    assert told == [True, True, tile == 128, False, False, False]
    assert len(graphs) == 2


@pytest.mark.parametrize("how", ["views of a message", "parts of a message of heads", "tokens first", "contiguous"])
def test_flex_loads_what_its_graph_knows(how: str) -> None:
    """Fails when a graph gets a stride or a beginning that follows from no length: for all that its compiler knows it
    is odd, and loads of keys are then of 2 bytes.
    """
    seen: list[torch.Tensor] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Any]) -> Any:
        values = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        seen.extend(value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point())
        return graph.forward

    zero = np.zeros(300, np.int32)
    every = MaskTensors.from_arrays(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1))
    q, k, v, _ = (x.float() for x in random_inputs(4, 2, 300, 16))
    right = reference_attention(q, k, v, every)
    if how == "views of a message":
        kv = torch.stack([k.transpose(0, 1), v.transpose(0, 1)], 1)
        k, v = kv[:, 0].transpose(0, 1), kv[:, 1].transpose(0, 1)
    elif how == "parts of a message of heads":
        q, k, v = torch.cat([q, k, v]).split([4, 2, 2])
    elif how == "tokens first":
        q, k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v))
    kernel = Flex(attention=compiled_attention(backend))
    out, _ = kernel.forward(q, k, v, kernel.prepare(every, every))
    torch.testing.assert_close(out, right, rtol=1e-5, atol=1e-5)
    assert len(seen) == 3
    for x in seen:
        known = {symbol for size in x.shape if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}
        asked = [each for each in (*x.stride(), x.storage_offset()) if isinstance(each, torch.SymInt)]
        assert {symbol for each in asked for symbol in each.node.expr.free_symbols} <= known


def test_flex_raises_at_its_bound_of_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when FlexAttention goes on uncompiled once it was compiled too often, with a dense matrix of scores."""
    from torch._dynamo.exc import FailOnRecompileLimitHit  # here, since every process that runs tests reads this file

    monkeypatch.setattr("preshard.trainer.attention.kernels.flex.MOST_COMPILATIONS", 1)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    zero, kernel = np.zeros(300, np.int32), Flex(attention=compiled_attention(backend))
    every = MaskTensors.from_arrays(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1))
    q, k, v, _ = (x.float() for x in random_inputs(4, 2, 300, 16))
    kernel.forward(q, k, v, kernel.prepare(every, every))
    with pytest.raises(FailOnRecompileLimitHit):
        kernel.forward(q.double(), k.double(), v.double(), kernel.prepare(every, every))
    assert len(graphs) == 1


def test_flex_that_cannot_be_compiled_raises() -> None:
    """Fails when FlexAttention falls back to a dense matrix of scores where a graph cannot be made."""
    from torch._dynamo.exc import BackendCompilerFailed

    def backend(_graph: torch.fx.GraphModule, _inputs: list[Any]) -> Any:
        raise NotImplementedError("no graph")

    zero, kernel = np.zeros(300, np.int32), Flex(attention=compiled_attention(backend))
    every = MaskTensors.from_arrays(MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1))
    q, k, v, _ = (x.float() for x in random_inputs(4, 2, 300, 16))
    with pytest.raises(BackendCompilerFailed, match="no graph"):
        kernel.forward(q, k, v, kernel.prepare(every, every))


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "said"),
    [
        ("cuda", torch.float64, 64, "--dtype is float64; attention on CUDA does not support it: use"),
        ("cuda", torch.float32, 8, "narrowest head has 8 numbers; attention on CUDA needs 16"),
        ("mps", torch.float32, 64, "device is 'mps'"),
    ],
)
def test_what_a_kernel_cannot_compute_is_refused(device: str, dtype: torch.dtype, head_dim: int, said: str) -> None:
    """Fails when a dtype or a width of heads is found out by the first step's kernel."""
    with pytest.raises(ConfigError, match=said):
        check_kernel(device, dtype, head_dim)
    check_kernel("cpu", torch.float64, 6)
    check_kernel("cuda", torch.bfloat16, 16)


def test_devices() -> None:
    assert isinstance(kernel_for("cpu"), FlashCPU)
    assert isinstance(kernel_for("cuda"), Flex)
    with pytest.raises(ConfigError, match="device is 'mps'; attention runs on cpu and cuda"):
        kernel_for("mps")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_flex_on_a_gpu(kv_heads: int, make_mask: Any) -> None:
    # The compiled forward and the backward made from it, in parts.
    mask = make_mask([(0, 0, -1)] * 500 + [(0, 0, 3)] * 200 + [(-1, 0, -1)] * 24 + [(1, 0, -1)] * 300)
    tensors, kernel = MaskTensors.from_arrays(mask).to("cuda"), Flex()
    inputs = [x.float() for x in random_inputs(4, kv_heads, mask.seq_len, 64)]
    q, k, v, dout = (x.cuda() for x in inputs)
    queries, parts = tensors.at(np.arange(mask.seq_len)), np.array_split(np.arange(mask.seq_len), 2)
    prepared = [kernel.prepare(queries, tensors.at(part)) for part in parts]
    results = [kernel.forward(q, k[:, p], v[:, p], ready) for p, ready in zip(parts, prepared, strict=True)]
    out, lse = merge(results[0][0].float(), results[0][1], results[1][0].float(), results[1][1])
    grads = [
        kernel.backward(dout, q, k[:, p], v[:, p], out, lse, ready) for p, ready in zip(parts, prepared, strict=True)
    ]
    ours = out, grads[0][0] + grads[1][0], *(torch.cat([g[i] for g in grads], dim=1) for i in (1, 2))
    call = kernel.whole(q, k, v, kernel.prepare(queries, queries))
    alone = call.out, *call.backward(dout, (q, k, v), call.saved)
    expected = whole(mask, [x.double() for x in inputs])
    for mine, one_call, right in zip(ours, alone, expected, strict=True):
        torch.testing.assert_close(mine.double().cpu(), right, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(one_call.double().cpu(), right, rtol=2e-2, atol=2e-2)

"""Random packs dealt in every way, attention on all ranks of a mesh, and the reference's attention."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from preshard.schemas.layout import TokenLayout, rank_positions
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.reference import reference_attention
from preshard.trainer.core.mesh import Mesh

sys.path.insert(0, str(Path(__file__).parent))  # for dense_kernel.py

BLOCK = 8
Results = tuple[Tensor, Tensor, Tensor, Tensor]
"""Output and the gradients of q, k and v, in natural order."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pack, how it is dealt, and the sizes of the heads."""

    mask: MaskArrays
    layout: TokenLayout
    window: int | None = None
    ulysses: int = 1
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 8
    value_dim: int | None = None
    dtype: torch.dtype = torch.float64
    seed: int = 0

    @property
    def ring(self) -> int:
        return self.layout.ring_degree

    @property
    def tensors(self) -> MaskTensors:
        """The mask, within the window."""
        return MaskTensors.from_arrays(self.mask).within(self.window)

    def inputs(self) -> list[Tensor]:
        """q, k, v and the output's gradient for the whole pack."""
        rng = torch.Generator().manual_seed(self.seed)
        length, keys, values = self.mask.seq_len, self.head_dim, self.value_dim or self.head_dim
        sizes = (self.heads, keys), (self.kv_heads, keys), (self.kv_heads, values), (self.heads, values)
        return [torch.randn(n, length, d, generator=rng, dtype=torch.float64).to(self.dtype) for n, d in sizes]

    def slices(self) -> list[np.ndarray]:
        """Natural positions of each CP rank's tokens."""
        return [
            rank_positions(self.layout.runs, ring_rank=r, ulysses_degree=self.ulysses, ulysses_rank=u)
            for r in range(self.ring)
            for u in range(self.ulysses)
        ]


Calls = list[tuple[str, dict[str, Any]]]
"""Kinds of attention, each with its options of ``bind``."""


def attend_here(cp: ContextParallel, case: Case, calls: Calls) -> list[Results]:
    """Results of a rank for some kinds of attention: output and gradients of its own tokens."""
    mine = torch.from_numpy(case.slices()[cp.cp_rank])
    q, k, v, dout = (x[:, mine] for x in case.inputs())
    results = []
    for kind, options in calls:
        attend = bind(kind, case.layout, case.tensors, cp, **options)
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attend(*inputs)
        assert out.dtype == case.dtype
        results.append((out.detach(), *torch.autograd.grad(out, inputs, dout)))
    return results


def attend_on_rank(mesh: Mesh, fields: dict[str, Any], calls: Calls) -> list[Results]:
    """The same on a rank of the pool."""
    return attend_here(mesh.cp, Case(**fields), calls)


Attend = Callable[[Case, Calls], list[Results]]


def _joined(case: Case, calls: Calls, by_rank: Sequence[list[Results]]) -> list[Results]:
    """Results of all ranks together, in natural order, for each kind."""
    natural = torch.from_numpy(np.argsort(np.concatenate(case.slices())))
    joined = []
    for call in range(len(calls)):
        parts = zip(*(rank[call] for rank in by_rank), strict=True)
        out, dq, dk, dv = (torch.cat(list(part), dim=1)[:, natural] for part in parts)
        joined.append((out, dq, dk, dv))
    return joined


@pytest.fixture(scope="session")
def make_case() -> Callable[..., Case]:
    """``make_case(mask=, layout=, ...)``."""
    return Case


@pytest.fixture(scope="session")
def attend() -> Attend:
    """``attend(case, [(kind, options of bind), ...])`` on all ranks of the case's mesh, for each kind.

    The ranks are threads, which is faster than processes. What they exchange is copied in memory.
    """
    from thread_ranks import run_ranks  # the pool's ranks, which load this file, do not find it

    def run(case: Case, calls: Calls) -> list[Results]:
        by_rank = run_ranks(case.ulysses, case.ring, lambda cp: attend_here(cp, case, calls))
        return _joined(case, calls, by_rank)

    return run


@pytest.fixture(scope="session")
def attend_in_processes(gloo_pool: Any) -> Attend:
    """``attend`` with a process for each rank, for what depends on how torch sends."""

    def run(case: Case, calls: Calls) -> list[Results]:
        by_rank = gloo_pool.run(attend_on_rank, vars(case), calls, ulysses=case.ulysses, ring=case.ring)
        return _joined(case, calls, by_rank)

    return run


@pytest.fixture(scope="session")
def expected() -> Callable[[Case], Results]:
    """Results of the reference, in float64."""

    def run(case: Case) -> Results:
        q, k, v, dout = (x.double() for x in case.inputs())
        inputs = [x.requires_grad_() for x in (q, k, v)]
        out = reference_attention(q, k, v, case.tensors)
        dq, dk, dv = torch.autograd.grad(out, inputs, dout)
        return out.detach(), dq, dk, dv

    return run


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Results, Results], None]:
    """Output and gradients are the reference's, as closely as their dtype allows, and hold no NaN."""

    def check(ours: Results, theirs: Results) -> None:
        near = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 5e-2}
        for name, mine, right in zip(("out", "dq", "dk", "dv"), ours, theirs, strict=True):
            tolerance = near[mine.dtype]
            scale = max(1.0, float(right.abs().max()))
            torch.testing.assert_close(
                mine.double(), right, rtol=tolerance, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}"
            )

    return check


@pytest.fixture(scope="session")
def make_layout() -> Callable[..., TokenLayout]:
    """``make_layout(mask, scheme, ring, seed)``: a scheme of the packer, or ``random`` runs in any order."""
    # Imported here because the pool's ranks, which load this file, do not need a compiler.
    from preshard.packer_service.layout.needs import key_blocks_needed
    from preshard.packer_service.layout.solve import solve_layouts

    def make(
        mask: MaskArrays, scheme: str, ring: int, *, edges: np.ndarray | None = None, seed: int = 0
    ) -> TokenLayout:
        if scheme != "random":
            whole = np.array([0, mask.seq_len]) if edges is None else edges
            (layout,) = solve_layouts(
                mask, segment_edges=whole, schemes=(scheme,), ring_degrees=(ring,), block_size=BLOCK
            )
            return layout
        rng, length = np.random.default_rng(seed), mask.seq_len // ring
        piece = int(rng.choice([n for n in range(1, length + 1) if length % n == 0]))
        starts = rng.permutation(mask.seq_len // piece) * piece
        owners = np.repeat(np.arange(ring), len(starts) // ring)
        runs = np.stack([owners, starts, np.full(len(starts), piece)], axis=1).astype(np.int32)
        needs = key_blocks_needed(mask, runs, ring, BLOCK)
        return TokenLayout(scheme="random", ring_degree=ring, block_size=BLOCK, runs=runs, needs=needs)

    return make


@pytest.fixture(scope="session")
def packs() -> Callable[[int, int], st.SearchStrategy[tuple[MaskArrays, np.ndarray]]]:
    """``packs(multiple, align)``: a mask whose length divides by ``multiple``, and the edges of its documents.

    Documents begin at multiples of ``align``, so there is padding between them and at the end. They have images that
    see themselves, in one piece or interrupted by text, and annotations after what these share. A third of the packs
    are anything else that the arrays can express: random ids for short runs of tokens, one document in many places.
    """

    def strategy(multiple: int, align: int) -> st.SearchStrategy[tuple[MaskArrays, np.ndarray]]:
        document = st.tuples(
            st.integers(1, 40),
            st.integers(0, 3),
            st.integers(1, 30),
            st.booleans(),
            st.integers(0, 3),
            st.integers(1, 25),
        )
        run = st.tuples(st.integers(1, 30), st.integers(-1, 2), st.integers(0, 2), st.integers(-1, 2))
        ordinary = st.builds(
            lambda documents, copies: _ordinary(documents * copies, multiple, align),
            st.lists(document, min_size=1, max_size=3),  # the reference's matrix is dense
            st.integers(1, 2),
        )
        scattered = st.builds(lambda runs: _scattered(runs, multiple), st.lists(run, min_size=1, max_size=12))
        return st.one_of(ordinary, ordinary, scattered)

    return strategy


def _ordinary(documents: list[tuple[Any, ...]], multiple: int, align: int) -> tuple[MaskArrays, np.ndarray]:
    rows: list[tuple[int, int, int]] = []
    edges = [0]
    for number, (text, images, image, one_group, questions, question) in enumerate(documents):
        rows += [(number, 0, -1)] * text
        for i in range(images):
            rows += [(number, 0, 0 if one_group else i)] * image + [(number, 0, -1)] * 2
        for branch in range(1, questions + 1):
            rows += [(number, branch, -1)] * question
        rows += [(-1, 0, -1)] * (-len(rows) % align)
        edges.append(len(rows))
    rows += [(-1, 0, -1)] * (-len(rows) % multiple)
    if len(rows) > edges[-1]:
        edges.append(len(rows))
    return _mask(rows), np.array(edges)


def _scattered(runs: list[tuple[int, int, int, int]], multiple: int) -> tuple[MaskArrays, np.ndarray]:
    rows = [(doc, branch, group) for length, doc, branch, group in runs for _ in range(length)]
    rows += [rows[0]] * (-len(rows) % multiple)
    return _mask(rows), np.array([0, len(rows)])


def _mask(rows: list[tuple[int, int, int]]) -> MaskArrays:
    doc, branch, group = (np.ascontiguousarray(column) for column in np.array(rows, np.int32).T)
    return MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=group)


@pytest.fixture(scope="session")
def make_mask() -> Callable[[list[tuple[int, int, int]]], MaskArrays]:
    """``make_mask([(doc, branch, group), ...])``, one row per token."""
    return _mask


@pytest.fixture(scope="session")
def cases(packs: Any, make_layout: Any) -> Callable[[str, int, int], st.SearchStrategy[Case]]:
    """``cases(scheme, ulysses, ring)``: packs dealt by a scheme, with numbers and sizes of heads."""

    def build(pack: Any, scheme: str, ulysses: int, ring: int, seed: int, **sizes: Any) -> Case:
        mask, edges = pack
        return Case(
            mask=mask,
            layout=make_layout(mask, scheme, ring, edges=edges, seed=seed),
            ulysses=ulysses,
            seed=seed,
            **sizes,
        )

    def strategy(scheme: str, ulysses: int, ring: int) -> st.SearchStrategy[Case]:
        degree = ulysses * ring
        heads = st.sampled_from([(1, 1), (1, 4), (1, 8), (2, 2), (2, 4), (3, 3)])
        return heads.flatmap(
            lambda kv: st.builds(
                build,
                packs(math.lcm(BLOCK * ring, 2 * degree), 2 * ring),
                st.just(scheme),
                st.just(ulysses),
                st.just(ring),
                st.integers(0, 2**16),
                kv_heads=st.just(kv[0]),
                heads=st.just(math.lcm(kv[0] * kv[1], degree)),
                head_dim=st.sampled_from([1, 7, 16, 33]),
                dtype=st.sampled_from([torch.float64, torch.float64, torch.float32]),
            )
        )

    return strategy

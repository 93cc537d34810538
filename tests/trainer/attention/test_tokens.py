"""Values of tokens between slices and natural order: the identity both ways, on every layout and split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.solve import solve_layouts
from preshard.schemas.errors import ReaderError
from preshard.schemas.layout import SCHEMES, TokenLayout, rank_positions
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.tokens import gather_tokens, slice_tokens
from preshard.trainer.core.mesh import Mesh

SEQ_LEN = 128
SPLITS = [(1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2)]
"""Ulysses and ring degrees."""


@dataclass
class Part:
    """Batch with the fields for which the functions ask."""

    layout: TokenLayout
    positions: Tensor
    seq_len: int = SEQ_LEN


def layouts(ring: int) -> list[TokenLayout]:
    doc = np.repeat(np.array([0, 1, 2, -1], np.int32), [48, 8, 56, 16])
    mask = MaskArrays(doc_ids=doc, branch_ids=np.zeros_like(doc), group_ids=np.full_like(doc, -1))
    edges = np.array([0, 48, 56, 112, 128])
    return solve_layouts(
        MaskIndex.of(mask), segment_edges=edges, schemes=SCHEMES, ring_degrees=[ring], block_size=8, known={}
    )


def part_of(layout: TokenLayout, cp: ContextParallel) -> Part:
    found = rank_positions(
        layout.runs, ring_rank=cp.ring_rank, ulysses_degree=cp.ulysses_degree, ulysses_rank=cp.ulysses_rank
    )
    return Part(layout, torch.from_numpy(found))


def check_rank(mesh: Mesh) -> list[str]:
    """Names of the layouts for which everything held, on a rank of the pool."""
    cp, held = mesh.cp, []
    rng = torch.Generator().manual_seed(1)
    whole, grad = (torch.randn(SEQ_LEN, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    for layout in layouts(cp.ring_degree):
        batch = part_of(layout, cp)
        x = whole.clone().requires_grad_()
        mine = slice_tokens(x, batch, cp)
        assert mine.equal(whole[batch.positions])
        again = gather_tokens(mine, batch, cp)
        assert again.equal(x)
        assert torch.autograd.grad(again, x, grad)[0].equal(grad)
        local, own = whole[batch.positions].clone().requires_grad_(), grad[batch.positions]
        joined = gather_tokens(local, batch, cp)
        back = slice_tokens(joined, batch, cp)
        assert back.equal(local)
        assert torch.autograd.grad(back, local, own, retain_graph=True)[0].equal(own)
        assert torch.autograd.grad(joined.square().sum(), local)[0].equal(2 * local), "counts once, on every rank"
        for values in (torch.arange(SEQ_LEN), torch.arange(SEQ_LEN) % 3 == 0):
            assert gather_tokens(values[batch.positions], batch, cp).equal(values)
        held.append(layout.name)
    return held


@pytest.mark.parametrize(
    ("ulysses", "ring"),
    [pytest.param(*split, marks=[pytest.mark.slow] * (split in ((2, 1), (4, 1)))) for split in SPLITS],
)
def test_gathering_what_was_sliced_gives_it_back(gloo_pool: Any, ulysses: int, ring: int) -> None:
    """Fails when values or gradients end at another token, are counted once for each rank, or are lost."""
    by_rank = gloo_pool.run(check_rank, ulysses=ulysses, ring=ring)
    assert by_rank == [[f"{scheme}.ring{ring}" for scheme in SCHEMES]] * (ulysses * ring)


def test_values_for_another_number_of_tokens_are_refused() -> None:
    """Fails when a tensor of another length, or a batch of another split, is put into some order in silence."""
    batch = part_of(layouts(1)[0], ContextParallel())
    for call in (gather_tokens, slice_tokens):
        with pytest.raises(ReaderError, match=r"x has 5 values, and the batch 128 tokens"):
            call(torch.zeros(5), batch)
        with pytest.raises(ReaderError, match=r"cp has 2 ranks and ring degree 2"):
            call(torch.zeros(SEQ_LEN), batch, ContextParallel(ring_degree=2))

"""The exchange of features between several processes, in odd cases."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TokenLayout, rank_positions
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.models.features import WAYS, bind_features, token_places

HIDDEN = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A pack's tokens dealt in blocks, with pooled rows anywhere among them, made by ranks according to ``edges``."""

    ulysses: int
    ring: int
    seq_len: int
    edges: list[int]
    seed: int

    @property
    def layout(self) -> TokenLayout:
        """Blocks of 4 tokens in any order, the same number on each ring rank."""
        blocks = np.random.default_rng(self.seed).permutation(self.seq_len // 4).reshape(self.ring, -1)
        runs = [(rank, 4 * block, 4) for rank, mine in enumerate(blocks) for block in mine]
        needs = np.ones((self.ring, self.seq_len // 4), np.bool_)
        return TokenLayout(
            scheme="any", ring_degree=self.ring, block_size=4, runs=np.array(runs, np.int32), needs=needs
        )

    @property
    def pool_positions(self) -> np.ndarray:
        """Any tokens in any order, which is more general than the format."""
        return np.random.default_rng(self.seed + 1).permutation(self.seq_len)[: self.edges[-1]]

    def batch(self, cp_rank: int) -> RankBatch:
        """Batch with what the exchange reads; the rest is empty."""
        empty = torch.zeros(0, dtype=torch.int64)
        values: dict[str, Any] = {f.name: empty for f in dataclasses.fields(RankBatch)}
        values |= {
            "layout": self.layout,
            "doc_ids": torch.zeros(self.seq_len, dtype=torch.int32),
            "pool_edges": torch.tensor(self.edges),
            "pool_positions": torch.from_numpy(self.pool_positions),
            "cp_rank": cp_rank,
        }
        return RankBatch(**values)


def _rows(start: int, end: int) -> Tensor:
    """Features that show their row."""
    return torch.arange(start, end, dtype=torch.float64)[:, None] * 10 + torch.arange(HIDDEN)


def exchange_on_a_rank(mesh: Mesh, values: dict[str, Any], way: str) -> tuple[Tensor, Tensor, Tensor]:
    """Features that arrive, their places, and the gradient of what was sent if an arriving row x has x + 0.5."""
    case, cp = Case(**values), mesh.cp
    exchange = bind_features(case.batch(cp.cp_rank), cp, way)
    made = _rows(*case.edges[cp.cp_rank : cp.cp_rank + 2]).requires_grad_()
    arrived = exchange(made)
    arrived.backward(arrived.detach() + 0.5)
    assert made.grad is not None
    return arrived.detach(), exchange.slots, made.grad


SPLITS = [(2, 1), (1, 2), (2, 2), (1, 4), (4, 1)]
EDGES = {
    "no image in the pack": lambda ranks: [0] * (ranks + 1),
    "one image": lambda ranks: [0] + [4] * ranks,
    "the last rank's alone": lambda ranks: [0] * ranks + [7],
    "fewer units than ranks": lambda ranks: [min(3 * rank, 3 * (ranks - 1)) for rank in range(ranks + 1)],
    "uneven": lambda ranks: [0, *itertools.accumulate(1 + (rank * 5) % 7 for rank in range(ranks))],
    "every token": lambda ranks: [rank * 32 // ranks for rank in range(ranks + 1)],
}


@pytest.mark.parametrize("case", EDGES)
@pytest.mark.parametrize(("ulysses", "ring"), SPLITS)
def test_both_ways_bring_every_row_to_its_token_and_its_gradient_back(
    gloo_pool: Any, ulysses: int, ring: int, case: str
) -> None:
    """Fails when a row goes to a wrong rank or slot, or when ranks disagree on what they send each other (and hang)."""
    ranks = ulysses * ring
    given = Case(ulysses=ulysses, ring=ring, seq_len=32, edges=EDGES[case](ranks), seed=ranks)
    held = [
        rank_positions(
            given.layout.runs, ring_rank=rank // ulysses, ulysses_degree=ulysses, ulysses_rank=rank % ulysses
        )
        for rank in range(ranks)
    ]
    for way in WAYS:
        answers = gloo_pool.run(exchange_on_a_rank, dataclasses.asdict(given), way, ulysses=ulysses, ring=ring)
        filled: dict[int, Tensor] = {}
        for rank, (arrived, slots, gradient) in enumerate(answers):
            assert len(arrived) == len(slots) == len(set(slots.tolist()))
            filled |= dict(zip(torch.from_numpy(held[rank])[slots].tolist(), arrived, strict=True))
            expected = _rows(given.edges[rank], given.edges[rank + 1]) + 0.5
            assert gradient.equal(expected), (way, rank)
        by_row = torch.stack([filled[position] for position in given.pool_positions]) if filled else torch.zeros(0)
        assert len(filled) == given.edges[-1]
        assert not filled or by_row.equal(_rows(0, given.edges[-1])), way


def test_a_rank_receives_only_the_rows_of_its_tokens() -> None:
    """Fails when a routed feature goes to a rank that does not hold its token."""
    case = Case(ulysses=2, ring=4, seq_len=64, edges=[0, 9, 9, 20, 21, 30, 41, 50, 50], seed=3)
    plans = [
        bind_features(
            case.batch(r), ContextParallel(ulysses_degree=2, ring_degree=4, ring_rank=r // 2, ulysses_rank=r % 2)
        )
        for r in range(8)
    ]
    sent = np.array([plan.send_sizes for plan in plans])
    assert np.array_equal(sent.T, [plan.receive_sizes for plan in plans]), "what one rank sends, the other expects"
    assert sent.sum() == 50
    assert sent.sum(0).tolist() == [len(plan.slots) for plan in plans]
    assert any(row.count(0) for row in sent.tolist()), "some pairs exchange nothing"


def test_tokens_are_where_the_layout_says() -> None:
    """Fails when Ulysses pieces are interleaved, or slots are numbered through the ring rank's whole slice."""
    runs = np.array([(0, 0, 2), (0, 6, 2), (1, 2, 4)], np.int32)
    layout = TokenLayout(scheme="any", ring_degree=2, block_size=4, runs=runs, needs=np.ones((2, 2), np.bool_))
    holder, place = token_places(layout, 8, 2)
    assert holder.tolist() == [0, 0, 2, 2, 3, 3, 1, 1]
    assert place.tolist() == [0, 1] * 4


def test_one_process_needs_no_group() -> None:
    """Fails when a single rank asks for a process group, or fills slots in another order than rows."""
    case = Case(ulysses=1, ring=1, seq_len=16, edges=[0, 6], seed=0)
    exchange = bind_features(case.batch(0), ContextParallel())
    assert exchange(_rows(0, 6)).equal(_rows(0, 6))
    natural = rank_positions(case.layout.runs, ring_rank=0)
    assert natural[exchange.slots].tolist() == case.pool_positions.tolist()


def test_an_unknown_way_is_refused() -> None:
    """Fails when a misspelt way is taken for the default."""
    case = Case(ulysses=1, ring=1, seq_len=16, edges=[0, 6], seed=0)
    with pytest.raises(ConfigError, match="features is 'rout'; take one of route, gather"):
        bind_features(case.batch(0), ContextParallel(), "rout")

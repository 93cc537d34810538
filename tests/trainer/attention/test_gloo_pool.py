"""The pool of ranks on which every distributed test rests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from preshard.trainer.distributed.mesh import Mesh


def place_and_sum(mesh: Mesh, number: float) -> tuple[int, int, float]:
    total = torch.tensor(number + dist.get_rank())
    dist.all_reduce(total)
    return mesh.cp.ring_rank, mesh.cp.ulysses_rank, float(total)


def fail_on_one_rank(mesh: Mesh) -> None:
    if dist.get_rank() == 1:
        raise ValueError("this rank fails on purpose")
    dist.barrier()


def test_worlds_of_all_shapes_follow_each_other(gloo_pool: Any) -> None:
    # A pool that kept the groups of an earlier world would deadlock, or sum over the wrong ranks.
    for ring, ulysses in ((2, 1), (1, 2), (2, 2), (1, 1), (4, 1), (2, 1)):
        size = ring * ulysses
        expected = [(r, u, size * 10.0 + size * (size - 1) / 2) for r in range(ring) for u in range(ulysses)]
        assert gloo_pool.run(place_and_sum, 10.0, ring=ring, ulysses=ulysses) == expected


def test_a_failing_rank_is_reported_and_the_next_run_is_sound(gloo_pool: Any) -> None:
    # A pool that waited for the rank in the barrier would hang; one that kept its processes would mix up answers.
    with pytest.raises(AssertionError, match="this rank fails on purpose"):
        gloo_pool.run(fail_on_one_rank, ring=2)
    assert gloo_pool.run(place_and_sum, 0.0, ring=2) == [(0, 0, 1.0), (1, 0, 1.0)]


def rank_before_they_meet(rank: int, number: int) -> tuple[int, bool]:
    return rank * number, dist.is_initialized()


def test_ranks_apart_have_not_met(gloo_pool: Any) -> None:
    # A rank of a world that has met could not show how the command joins the others, or would leave the world broken.
    assert gloo_pool.run_apart(rank_before_they_meet, 10, size=2) == [(0, False), (10, False)]
    with pytest.raises(AssertionError, match="place_and_sum"):
        gloo_pool.run_apart(place_and_sum, 0.0, size=1)  # takes a mesh
    assert gloo_pool.run(place_and_sum, 0.0, ring=2) == [(0, 0, 1.0), (1, 0, 1.0)]

"""The pool of ranks on which every distributed test rests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from trainer.distributed.mesh import Mesh


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
    for ring, ulysses in ((2, 1), (1, 2), (2, 2), (1, 1), (4, 2), (2, 1)):
        size = ring * ulysses
        expected = [(r, u, size * 10.0 + size * (size - 1) / 2) for r in range(ring) for u in range(ulysses)]
        assert gloo_pool.run(place_and_sum, 10.0, ring=ring, ulysses=ulysses) == expected


def test_a_failing_rank_is_reported_and_the_next_run_is_sound(gloo_pool: Any) -> None:
    # A pool that waited for the rank in the barrier would hang; one that kept its processes would mix up answers.
    with pytest.raises(AssertionError, match="this rank fails on purpose"):
        gloo_pool.run(fail_on_one_rank, ring=2)
    assert gloo_pool.run(place_and_sum, 0.0, ring=2) == [(0, 0, 1.0), (1, 0, 1.0)]

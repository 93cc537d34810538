"""Rotary positions."""

from __future__ import annotations

import torch

from trainer.models.rope import Rotary


def _scores(positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    rotary = Rotary(positions, head_dim=q.shape[-1], theta=10_000.0, dtype=q.dtype)
    return rotary(q) @ rotary(k).transpose(1, 2)


def test_scores_depend_on_differences_of_positions_alone() -> None:
    """Fails when a pair is rotated by different angles, or queries and keys in different directions."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(3, 20, 10, dtype=torch.float64, generator=generator) for _ in range(2))
    positions = torch.randint(0, 5000, (20,), generator=generator)
    scores = _scores(positions, q, k)
    torch.testing.assert_close(scores, _scores(positions + 31_000, q, k), rtol=0, atol=1e-9)
    assert not torch.allclose(scores, _scores(positions * 2, q, k), atol=0.1)


def test_tokens_keep_their_angles_in_any_order() -> None:
    """Fails when an angle comes from a token's index in the slice instead of its position."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 50, 8, generator=generator)
    positions, order = torch.arange(50) * 7, torch.randperm(50, generator=generator)
    whole = Rotary(positions, head_dim=8, theta=100.0, dtype=x.dtype)(x)
    part = Rotary(positions[order], head_dim=8, theta=100.0, dtype=x.dtype)(x[:, order])
    assert part.equal(whole[:, order])


def test_norms_stay_and_position_0_is_not_rotated() -> None:
    """Fails when the rotation scales, or positions count from 1."""
    x = torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = Rotary(torch.tensor([0, 1, 99_999]), head_dim=6, theta=1e6, dtype=x.dtype)(x)
    assert turned[:, 0].equal(x[:, 0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_a_hand_example() -> None:
    """Fails when neighbours are rotated as pairs, or wavelengths are in reverse order."""
    turned = Rotary(torch.tensor([1]), head_dim=4, theta=100.0, dtype=torch.float64)(
        torch.tensor([[[1.0, 1.0, 0.0, 0.0]]], dtype=torch.float64)
    )
    one, tenth = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    torch.testing.assert_close(turned[0, 0], torch.stack([one.cos(), tenth.cos(), one.sin(), tenth.sin()]))


def test_bfloat16_keeps_neighbours_apart() -> None:
    """Fails when angles are computed in bfloat16, where position 4097 equals position 4096."""
    x = torch.ones(1, 2, 2, dtype=torch.bfloat16)
    turned = Rotary(torch.tensor([4096, 4097]), head_dim=2, theta=10.0, dtype=x.dtype)(x).double()
    exact = Rotary(torch.tensor([4096, 4097]), head_dim=2, theta=10.0, dtype=torch.float64)(x.double())
    torch.testing.assert_close(turned, exact, rtol=0, atol=2**-7)
    assert (turned[0, 0] - turned[0, 1]).abs().max() > 0.5

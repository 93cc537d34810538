"""The vision encoder and its connector: the order of their outputs, odd windows, and no crop at all."""

from __future__ import annotations

import pytest
import torch

from trainer.models.config import ModelConfig
from trainer.models.connector import Connector, pooling_windows
from trainer.models.model import build_model
from trainer.models.vision import to_patches


def _sized(config: ModelConfig, image_size: int, pool_size: int) -> ModelConfig:
    sizes = {"image_size": image_size, "patch_size": 2, "pool_size": pool_size}
    return config.model_copy(update={"vision": config.vision.model_copy(update=sizes)})


def _crops(count: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_patches_go_row_by_row() -> None:
    """Fails when patches go column by column, or a patch mixes pixels of two."""
    image = torch.arange(4 * 6 * 3, dtype=torch.uint8).reshape(1, 4, 6, 3)
    patches = to_patches(image, 2, torch.float64)[0]
    assert patches.shape == (6, 12)
    for number, (row, column) in enumerate([(0, 0), (0, 2), (0, 4), (2, 0), (2, 2), (2, 4)]):
        expected = image[0, row : row + 2, column : column + 2].reshape(-1).double() / 127.5 - 1
        assert patches[number].equal(expected)


def test_pixels_become_minus_one_to_one() -> None:
    """Fails when pixels are scaled in bfloat16, where 127 and 128 become one number."""
    pixels = torch.tensor([0, 127, 128, 255], dtype=torch.uint8).repeat_interleave(3).reshape(1, 2, 2, 3)
    assert to_patches(pixels, 2, torch.float64)[0, 0, ::3].tolist() == [-1.0, 127 / 127.5 - 1, 128 / 127.5 - 1, 1.0]
    low = to_patches(pixels, 2, torch.bfloat16)[0, 0, ::3]
    assert low.dtype == torch.bfloat16
    assert low[1].item() == pytest.approx(-1 / 255, rel=2**-8)
    assert low[2].item() == pytest.approx(1 / 255, rel=2**-8)


@pytest.mark.parametrize(("grid", "pool"), [(4, 2), (5, 2), (5, 3), (1, 3), (3, 3), (4, 1), (27, 3), (7, 5)])
def test_every_patch_is_in_exactly_the_window_over_it(grid: int, pool: int) -> None:
    """Fails when a window in the last row or column takes patches of the next row, or leaves some out."""
    patches, there = pooling_windows(grid, pool)
    side = -(-grid // pool)
    assert patches.shape == there.shape == (side**2, pool**2)
    for row in range(side):
        for column in range(side):
            inside = [
                r * grid + c
                for r in range(row * pool, min((row + 1) * pool, grid))
                for c in range(column * pool, min((column + 1) * pool, grid))
            ]
            number = row * side + column
            assert patches[number][there[number]].tolist() == inside
    assert sorted(patches[there].tolist()) == list(range(grid**2))


def test_a_ragged_window_is_pooled_as_a_whole_one_of_its_patches(small_config: ModelConfig) -> None:
    """Fails when patches that do not exist count in the mean or in the attention."""
    ragged = build_model(_sized(small_config, 6, 2), seed=1, dtype=torch.float64).connector
    features = torch.randn(2, 9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = ragged(features).unflatten(0, (2, 4))
    for number, window in enumerate([[0, 1, 3, 4], [2, 5], [6, 7], [8]]):
        expected = _pooled_alone(ragged, features[:, window])
        torch.testing.assert_close(rows[:, number], expected, rtol=1e-12, atol=1e-14)


def _pooled_alone(connector: Connector, window: torch.Tensor) -> torch.Tensor:
    """One window by torch's own attention."""
    q = connector.q_proj(window.mean(1, keepdim=True)).unflatten(2, (2, -1)).transpose(1, 2)
    k, v = (proj(window).unflatten(2, (2, -1)).transpose(1, 2) for proj in (connector.k_proj, connector.v_proj))
    pooled = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)[:, 0]
    return connector.projector(connector.out_proj(pooled))


def test_rows_are_crop_after_crop_and_row_by_row(small_config: ModelConfig) -> None:
    """Fails when features are not in the order in which the packer numbers pooled rows."""
    model = build_model(_sized(small_config, 8, 2), seed=1, dtype=torch.float64)
    crops = _crops(3, 8)
    rows = model.connector(model.vision(crops)).unflatten(0, (3, 4))
    for number, crop in enumerate(crops):
        alone = model.connector(model.vision(crop[None]))
        torch.testing.assert_close(rows[number], alone, rtol=1e-12, atol=1e-14)
    marked = torch.zeros(1, 16, 16, dtype=torch.float64)
    for number, window in enumerate([[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]):
        marked.zero_()[0, window] = 1.0
        changed = (model.connector(marked) - model.connector(torch.zeros_like(marked))).abs().sum(1)
        assert torch.nonzero(changed)[:, 0].tolist() == [number]


def test_crops_do_not_see_each_other(small_config: ModelConfig) -> None:
    """Fails when a crop's features depend on which other crops its rank holds: results would depend on the split."""
    vision = build_model(_sized(small_config, 8, 2), seed=1, dtype=torch.float64).vision
    crops = _crops(4, 8)
    before = vision(crops)
    crops[2] = 255 - crops[2]
    after = vision(crops)
    assert after[[0, 1, 3]].equal(before[[0, 1, 3]])
    assert not after[2].equal(before[2])


@pytest.mark.parametrize("recompute", [False, True])
def test_no_crop_gives_no_row_and_gradients_of_zero(small_config: ModelConfig, recompute: bool) -> None:
    """Fails when a rank without a crop leaves a parameter without a gradient, for which sharded training would wait."""
    model = build_model(_sized(small_config, 6, 2), seed=1, recompute=recompute)
    rows = model.connector(model.vision(_crops(0, 6)))
    assert rows.shape == (0, 24)
    rows.sum().backward()
    for name, parameter in [*model.vision.named_parameters(), *model.connector.named_parameters()]:
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name

"""Torch's filter without torch, beside torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from preshard.packer_service.ingest.media.scale import scaled

SIZES = [
    *(((1, 1), (56, 56)), ((3, 601), (28, 560)), ((1, 199), (448, 896)), ((64, 48), (64, 31)), ((64, 48), (31, 48))),
    *(((3000, 40), (2900, 9)), ((40, 3000), (300, 17)), ((700, 501), (644, 476)), ((333, 222), (17, 900))),
]
"""Width and height, and those of the new picture: one pixel, one side as before, several parts along either axis."""


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("levels", [256, 2])
def test_every_pixel_is_torch_s(old: tuple[int, int], new: tuple[int, int], levels: int) -> None:
    """Fails when a part lacks a pixel that it is made of, or weights, or the picture between both passes, are rounded
    in another way than in torch's filter for pixels of 8 bits."""
    noise = np.random.default_rng(old[0]).integers(0, levels, (old[1], old[0], 3)) * (255 // (levels - 1))
    pixels = noise.astype(np.uint8)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous()
    theirs = torch.nn.functional.interpolate(tensor, new[::-1], mode="bicubic", antialias=True)
    found = np.asarray(scaled(Image.fromarray(pixels), new, "bicubic_16_bits"))
    np.testing.assert_array_equal(found, theirs[0].permute(1, 2, 0).numpy())
    pillow = np.asarray(Image.fromarray(pixels).resize(new, Image.Resampling.BICUBIC))
    assert old == (1, 1) or levels == 2 or (found != pillow).any()

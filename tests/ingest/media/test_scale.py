"""Pictures at another size: torch's filter beside torch's own, and reducing in bands beside reducing whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from preshard.packer_service.ingest.media import scale
from preshard.packer_service.ingest.media.scale import Shrunk, scaled

CANVAS = (20, 15)
SIZES = [
    *(((1, 1), (56, 56)), ((3, 601), (28, 560)), ((1, 199), (448, 896)), ((64, 48), (64, 31)), ((64, 48), (31, 48))),
    *(((3000, 40), (2900, 9)), ((40, 3000), (300, 17)), ((700, 501), (644, 476)), ((333, 222), (17, 900))),
]
"""Width and height, and those of the new picture: one pixel, one side as before, several parts along either axis."""


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("levels", [256, 2])
@pytest.mark.parametrize(
    ("mode", "scaling", "on_pillow"),
    [
        ("bicubic", "bicubic_16_bits", Image.Resampling.BICUBIC),
        ("bilinear", "triangle_16_bits", Image.Resampling.BILINEAR),
    ],
)
def test_every_pixel_is_torch_s(
    old: tuple[int, int],
    new: tuple[int, int],
    levels: int,
    mode: str,
    scaling: scale.FullScaling,
    on_pillow: Image.Resampling,
) -> None:
    """Fails when a part lacks a pixel that it is made of, or weights, or the picture between both passes, are rounded
    in another way than in torch's filter for pixels of 8 bits."""
    noise = np.random.default_rng(old[0]).integers(0, levels, (old[1], old[0], 3)) * (255 // (levels - 1))
    pixels = noise.astype(np.uint8)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous()
    theirs = torch.nn.functional.interpolate(tensor, new[::-1], mode=mode, antialias=True)
    found = np.asarray(scaled(Image.fromarray(pixels), new, scaling))
    np.testing.assert_array_equal(found, theirs[0].permute(1, 2, 0).numpy())
    pillow = np.asarray(Image.fromarray(pixels).resize(new, on_pillow))
    assert old == (1, 1) or levels == 2 or (found != pillow).any()


def picture(width: int, height: int) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [(16, 12), (400, 301), (401, 77), (199, 997), (1, 5000), (5000, 1), (60, 45)])
def test_bands_change_nothing(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    # Fails when bands do not lie on the grid of the reduction, or its last, partial pixel counts as a whole one.
    image = picture(*size)
    expected = np.asarray(image.resize(CANVAS, Image.Resampling.BICUBIC, reducing_gap=3.0))
    for band in (1, 50 * size[0], 1 << 19):
        monkeypatch.setattr(scale, "BAND_PIXELS", band)
        np.testing.assert_array_equal(np.asarray(Shrunk(image, CANVAS).scaled(CANVAS)), expected)


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "P", "I", "F", "I;16", "LA", "1"])
def test_modes_are_converted_band_by_band(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fails when each band finds black and white of its own, or a palette is lost on the way.
    image = Image.linear_gradient("L").resize((300, 400))
    deep = {"I": np.int32, "F": np.float32, "I;16": np.uint16}
    if mode in deep:
        step = {"I": 1000, "F": 7, "I;16": 257}[mode]
        image = Image.fromarray((np.asarray(image).astype(np.int64) * step).astype(deep[mode]))
    else:
        image = image.convert(mode, dither=Image.Dither.NONE)
    monkeypatch.setattr(scale, "BAND_PIXELS", 300 * 24)
    rows = np.asarray(Shrunk(image, CANVAS).scaled(CANVAS)).astype(int).mean((1, 2))
    # Bilevel images are black and white halves.
    expected = np.linspace(4, 250, CANVAS[1]) if mode != "1" else np.where(np.arange(15) < 7.5, 0, 255)
    np.testing.assert_allclose(rows, expected, atol=12 if mode != "1" else 140)
    assert image.size == (300, 400)


def test_a_large_image_is_never_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    # Fails when the whole picture is converted or copied before it is reduced: a task's memory is bounded.
    largest = 0
    crop = Image.Image.crop

    def watched(self: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
        nonlocal largest
        largest = max(largest, (box[2] - box[0]) * (box[3] - box[1]))
        return crop(self, box)

    monkeypatch.setattr(Image.Image, "crop", watched)
    shrunk = Shrunk(Image.new("RGBA", (4000, 3000)), (100, 100))
    assert 0 < largest <= scale.BAND_PIXELS
    assert shrunk.image.width * shrunk.image.height < 500 * 400

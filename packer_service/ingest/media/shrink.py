"""A decoded image to a small RGB one, in bands of rows, so that a large image is never in memory twice."""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image

from preshard.packer_service.ingest.media.grey import grey_range, to_rgb

BAND_PIXELS = 1 << 19
"""Pixels converted at a time: 2 MiB in four bytes per pixel, little beside any image that is worth reducing."""

REDUCING_GAP = 3
"""How many times as long as its canvas an axis stays when it is reduced by whole numbers. Pillow's documentation of
``reducing_gap`` calls the result nearly indistinguishable from fair resampling from 3.0 on."""


class Shrunk:
    """An image as RGB, reduced by whole numbers as far as every axis stays :data:`REDUCING_GAP` times its canvas.

    A whole-number reduction takes the mean of each block of pixels; a bicubic filter does the rest.

    Args:
        image: loaded, of any mode.
        canvas: width and height of the largest picture that :meth:`scaled` will be asked for.
    """

    def __init__(self, image: Image.Image, canvas: tuple[int, int]) -> None:
        factor = (_factor(image.width, canvas[0]), _factor(image.height, canvas[1]))
        self.image = image if factor == (1, 1) and _is_rgb(image) else _reduced(image, factor)
        # Where the factor does not divide the side, the image covers only a part of the last reduced pixel.
        self.box = (0.0, 0.0, image.width / factor[0], image.height / factor[1])

    def scaled(self, size: tuple[int, int]) -> Image.Image:
        """The whole image at another size, regardless of its aspect ratio."""
        return self.image.resize(size, Image.Resampling.BICUBIC, box=self.box, reducing_gap=float(REDUCING_GAP))


def whole_rgb(image: Image.Image) -> Image.Image:
    """A loaded image of any mode as RGB at its own size."""
    return image if _is_rgb(image) else _reduced(image, (1, 1))


def _factor(side: int, canvas: int) -> int:
    return max(1, side // (canvas * REDUCING_GAP))


def _is_rgb(image: Image.Image) -> bool:
    return image.mode == "RGB" and "transparency" not in image.info


def _reduced(image: Image.Image, factor: tuple[int, int]) -> Image.Image:
    reduced = Image.new("RGB", (-(-image.width // factor[0]), -(-image.height // factor[1])))
    limits = grey_range(band for _, band in _bands(image, 1))
    for top, band in _bands(image, factor[1]):
        rgb = band if _is_rgb(band) else to_rgb(band, limits)
        reduced.paste(rgb.reduce(factor), (0, top // factor[1]))
    return reduced


def _bands(image: Image.Image, multiple: int) -> Iterator[tuple[int, Image.Image]]:
    """Bands of whole rows, each with its first row; the height of all but the last is a multiple of ``multiple``."""
    rows = max(1, BAND_PIXELS // image.width // multiple) * multiple
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))

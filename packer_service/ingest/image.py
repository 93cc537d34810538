"""How many crops a still image has, known from its header, and then the crops."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from PIL import ExifTags, Image

from packer_service.ingest.grey import to_rgb
from packer_service.ingest.media import MediaFile, open_media
from schemas.errors import DocumentError
from schemas.example import Media

MAX_IMAGE_PIXELS = 178_956_970
"""Largest image, where Pillow too takes a header for an attack: half a GiB at 24 bits a pixel."""

# Formats that only hold pixels. Pillow also opens PostScript (by running a program) and multi-gigabyte scientific ones.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "MPO", "TGA", "ICO")

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes each EXIF orientation; 1 is upright."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageCrops:
    """How an image is cut: ``rows`` x ``cols`` tiles in reading order and, with more than one tile, a thumbnail LAST.

    ``width`` and ``height`` are the image's own, upright.
    """

    rows: int
    cols: int
    width: int
    height: int

    @property
    def thumbnail(self) -> bool:
        """Whether the whole image follows its tiles as one more crop."""
        return self.rows * self.cols > 1

    @property
    def n_crops(self) -> int:
        return self.rows * self.cols + self.thumbnail


def choose_grid(width: int, height: int, *, image_size: int, max_crops: int) -> tuple[int, int]:
    """Rows and columns of tiles that show an image nearest to its own resolution.

    An axis is scaled by the larger over the smaller of canvas (``cols`` or ``rows`` times ``image_size``) and image. Of
    all grids of at most ``max_crops`` tiles, the one whose worse axis is scaled least is taken; ties go to fewer tiles,
    then to the grid whose better axis is scaled least, then to fewer rows. In the spirit of the tiling of Molmo (Deitke
    et al. 2024, section 3); here the image fills its canvas without a border, as a single crop does, and tiles do not
    overlap.
    """

    def rank(grid: tuple[int, int]) -> tuple[Fraction, int, Fraction, int]:
        rows, cols = grid
        scales = [
            Fraction(max(canvas, own), min(canvas, own))
            for canvas, own in ((cols * image_size, width), (rows * image_size, height))
        ]
        return max(scales), rows * cols, min(scales), rows

    grids = ((rows, cols) for rows in range(1, max_crops + 1) for cols in range(1, max_crops // rows + 1))
    return min(grids, key=rank)


def probe_image(media: Media, base: str, *, image_size: int, max_crops: int) -> ImageCrops:
    """Count an image's crops from its header; no pixel is decoded.

    Args:
        media: the image.
        base: URI or path of the folder that holds the row's file.
        image_size: side of a crop in pixels.
        max_crops: most tiles; 1 keeps the whole image as its only crop.

    Raises:
        DocumentError: ``missing_media``, or ``bad_image``: empty, not an image, larger than
            :data:`MAX_IMAGE_PIXELS`, or (PNG and WebP, whose length is known from their headers) cut short.
    """
    with open_media(media, base) as file:
        if not file.size:
            raise DocumentError("bad_image", f"{file.label}: the file is empty")
        with _opened(file) as image:
            width, height = image.size
            if _orientation(image) >= 5:
                width, height = height, width
            kind = image.format
        if width * height > MAX_IMAGE_PIXELS:
            raise _too_large(file, f"{width} x {height}")
        if (kind == "PNG" and not _png_is_whole(file)) or (kind == "WEBP" and not _webp_is_whole(file)):
            raise DocumentError("bad_image", f"{file.label}: the file is cut short")
    rows, cols = choose_grid(width, height, image_size=image_size, max_crops=max_crops)
    return ImageCrops(rows=rows, cols=cols, width=width, height=height)


def decode_image(media: Media, base: str, crops: ImageCrops, *, image_size: int) -> list[Image.Image]:
    """Decode an image into its crops: square RGB images, the tiles in reading order and then the thumbnail.

    The whole image fills its canvas, upright as EXIF says, without keeping the aspect ratio. Transparent pixels show a
    white ground; high bit depths are scaled to 8 bits; of an animation, the first frame is taken.

    Args:
        media: the image that was probed.
        base: URI or path of the folder that holds the row's file.
        crops: what :func:`probe_image` chose.
        image_size: side of a crop in pixels.

    Raises:
        DocumentError: ``missing_media``, ``bad_image`` as in the probe, or ``decode_failed``: the pixels are damaged.
    """
    canvas = (crops.cols * image_size, crops.rows * image_size)
    with open_media(media, base) as file, _opened(file) as image:
        orientation = _orientation(image)
        try:
            # A JPEG far larger than its canvas is decoded at a half, a quarter or an eighth, never below twice the
            # canvas.
            side = 2 * max(canvas)
            image.draft(None, (side, side))
            image.load()
            rgb = to_rgb(image)
        except Exception as error:
            # Damaged pixels can surface as nearly any exception; one with a number comes from the file system.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = f"its pixels cannot be decoded ({type(error).__name__})"
            raise DocumentError("decode_failed", f"{file.label}: {reason}") from error
    if orientation in _UPRIGHT:
        rgb = rgb.transpose(_UPRIGHT[orientation])
    whole = _scaled(rgb, canvas)
    tiles = [
        whole.crop((col * image_size, row * image_size, (col + 1) * image_size, (row + 1) * image_size))
        for row in range(crops.rows)
        for col in range(crops.cols)
    ]
    return [*tiles, _scaled(rgb, (image_size, image_size))] if crops.thumbnail else tiles


def encode_image(image: Image.Image, *, image_format: Literal["jpeg", "png"], jpeg_quality: int) -> bytes:
    """The bytes that a shard stores for a crop: the same for the same pixels; no metadata.

    Args:
        image: an RGB crop.
        image_format: ``jpeg`` (chroma at half resolution, Pillow's default) or ``png``, which loses nothing.
        jpeg_quality: 1 to 100; not used for PNG.
    """
    out = io.BytesIO()
    # Pillow hands a photograph's comments and profiles on to everything that is cut from it.
    image = image.copy()
    image.info = {}
    if image_format == "jpeg":
        image.save(out, "JPEG", quality=jpeg_quality)
    else:
        image.save(out, "PNG")
    return out.getvalue()


def _scaled(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    # The gap of 3 lets whole-number reductions do the first part of a large one; the eye finds no difference.
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)


@contextmanager
def _opened(file: MediaFile) -> Iterator[Image.Image]:
    # Where warnings are made errors, a strange but whole image must not become a bad one.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(file.file, formats=_FORMATS)
        except Image.DecompressionBombError as error:
            raise _too_large(file, "its header's size") from error
        except Exception as error:
            # A damaged header can surface as nearly any exception; one with a number comes from the file system.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DocumentError("bad_image", f"{file.label}: not an image that Pillow can open") from error
        with image:
            yield image


def _too_large(file: MediaFile, found: str) -> DocumentError:
    message = f"{file.label}: {found} is above the limit of {MAX_IMAGE_PIXELS} pixels; scale the image down"
    return DocumentError("bad_image", message)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation 1 to 8, from the header alone: Pillow would decode a whole PNG in search of a late chunk."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF: the picture itself may be whole
        return 1
    return value if value in _UPRIGHT else 1


def _png_is_whole(file: MediaFile) -> bool:
    """Whether every chunk up to the end marker is there, by jumping from one chunk's header to the next."""
    position = 8
    while position + 12 <= file.size:
        file.seek(position)
        length, kind = struct.unpack(">I4s", file.read(8))
        if kind == b"IEND":
            return True
        position += 12 + length
    return False


def _webp_is_whole(file: MediaFile) -> bool:
    file.seek(4)
    return int.from_bytes(file.read(4), "little") + 8 <= file.size

"""How many crops a still image has, known from its header, and then the crops."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Literal, cast

from PIL import ExifTags, Image

from packer_service.ingest.document import Medium
from packer_service.ingest.media.grid import ImageGrid, choose_grid
from packer_service.ingest.media.open import MediaFile, open_media
from packer_service.ingest.media.shrink import Shrunk
from schemas.errors import DocumentError

MAX_IMAGE_PIXELS = 178_956_970
"""Largest image of any format: twice ``Image.MAX_IMAGE_PIXELS``, above which Pillow takes a header for an attack."""

MAX_DECODER_BYTES = 384 << 20
"""Most memory that decoding an image may take by its header: three quarters of what the decoder's process may use."""

# Bytes per pixel while an image is decoded, as measured. JPEG is decoded at a fraction of its size; the others hold an
# animation's canvases, whole planes or strips, samples of 32 bits, or coefficients besides the picture.
_BYTES_PER_PIXEL = {"JPEG": 2, "progressive JPEG": 8, "TIFF": 10, "PPM": 10, "AVIF": 12, "WEBP": 16, "JPEG2000": 25}

_PIXEL_BYTES = 4
"""Bytes of a pixel as Pillow keeps it, in the formats that need no more while they are decoded."""

# Formats that hold nothing but pixels and begin with a signature. Pillow also opens PostScript (by running a program),
# scientific files of many gigabytes, and takes random bytes for a TGA.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")

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

_SWAPPING = tuple(_UPRIGHT[orientation] for orientation in (5, 6, 7, 8))
"""Those that swap rows and columns."""


def probe_image(medium: Medium, base: str, *, image_size: int, max_crops: int) -> ImageGrid:
    """Counts an image's crops from its header; no pixel is decoded.

    Args:
        medium: the image.
        base: URI or path of the folder that holds the row's file.
        image_size: side of a crop in pixels.
        max_crops: most tiles; 1 keeps the whole image as its only crop.

    Raises:
        DocumentError: ``missing_media``, or ``bad_image``: empty, not an image, larger than
            :func:`max_pixels`, or (PNG and WebP, whose length is known from their headers) cut short.
    """
    with open_media(medium, base) as file:
        if not file.size:
            raise DocumentError("bad_image", f"{file.label}: the file is empty")
        with _opened(file) as image:
            width, height = image.size
            if _orientation(image) >= 5:
                width, height = height, width
            kind = f"progressive {image.format}" if "progressive" in image.info else image.format
        limit = max_pixels(kind)
        if width * height > limit:
            raise _too_large(file, f"{width} x {height}", limit)
        if (kind == "PNG" and not _png_is_whole(file)) or (kind == "WEBP" and not _webp_is_whole(file)):
            raise DocumentError("bad_image", f"{file.label}: the file is cut short")
    rows, cols = choose_grid(width, height, image_size=image_size, max_crops=max_crops)
    return ImageGrid(rows=rows, cols=cols, width=width, height=height)


def decode_image(medium: Medium, base: str, grid: ImageGrid, *, image_size: int) -> list[Image.Image]:
    """Decodes an image into its crops: square RGB images, the tiles in reading order and then the thumbnail.

    The whole image fills its canvas, upright as EXIF says, without keeping the aspect ratio. Transparent pixels show a
    white background, high bit depths are scaled to 8 bits, and of an animation the first frame is taken.

    Args:
        medium: the image that was probed.
        base: URI or path of the folder that holds the row's file.
        grid: what :func:`probe_image` chose.
        image_size: side of a crop in pixels.

    Raises:
        DocumentError: ``missing_media``, ``bad_image`` as in the probe, or ``decode_failed``: the pixels are damaged.
    """
    canvas = (grid.cols * image_size, grid.rows * image_size)
    with open_media(medium, base) as file, _opened(file) as image:
        turn = _UPRIGHT.get(_orientation(image))
        stored = canvas[::-1] if turn in _SWAPPING else canvas
        try:
            # A JPEG far larger than its canvas is decoded at a half, a quarter or an eighth, never below twice the
            # canvas.
            side = 2 * max(canvas)
            image.draft(None, (side, side))
            image.load()
            shrunk = Shrunk(image, stored)
        except Exception as error:
            # Damaged pixels can surface as nearly any exception; one with a number comes from the file system.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = f"its pixels cannot be decoded ({type(error).__name__})"
            raise DocumentError("decode_failed", f"{file.label}: {reason}") from error
    whole = _turned(shrunk.scaled(stored), turn)
    tiles = [
        whole.crop((col * image_size, row * image_size, (col + 1) * image_size, (row + 1) * image_size))
        for row in range(grid.rows)
        for col in range(grid.cols)
    ]
    return [*tiles, _turned(shrunk.scaled((image_size, image_size)), turn)] if grid.thumbnail else tiles


def _turned(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    return image if turn is None else image.transpose(turn)


def encode_image(image: Image.Image, *, image_format: Literal["jpeg", "png"], jpeg_quality: int) -> bytes:
    """The bytes that a shard stores for a crop: always the same for the same pixels, without metadata.

    Args:
        image: an RGB crop.
        image_format: ``jpeg`` (chroma at half resolution, Pillow's default) or ``png``, which loses nothing.
        jpeg_quality: 1 to 100; not used for PNG.
    """
    out = io.BytesIO()
    # Pillow copies a photograph's comments and profiles to everything that is cut from it.
    image = image.copy()
    image.info = {}
    if image_format == "jpeg":
        image.save(out, "JPEG", quality=jpeg_quality)
    else:
        image.save(out, "PNG")
    return out.getvalue()


@contextmanager
def _opened(file: MediaFile) -> Iterator[Image.Image]:
    # Where warnings are turned into errors, a strange but whole image must not become a bad one.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(cast(BinaryIO, file), formats=_FORMATS)
        except Image.DecompressionBombError as error:
            raise _too_large(file, "its header's size", MAX_IMAGE_PIXELS) from error
        except Exception as error:
            # A damaged header can surface as nearly any exception; one with a number comes from the file system.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DocumentError("bad_image", f"{file.label}: not an image that Pillow can open") from error
        with image:
            yield image


def max_pixels(kind: str | None) -> int:
    """Most pixels of an image of a format whose decoding keeps within :data:`MAX_DECODER_BYTES`."""
    return min(MAX_IMAGE_PIXELS, MAX_DECODER_BYTES // _BYTES_PER_PIXEL.get(kind or "", _PIXEL_BYTES))


def _too_large(file: MediaFile, found: str, limit: int) -> DocumentError:
    message = f"{file.label}: {found} is above the limit of {limit} pixels for its format; scale the image down"
    return DocumentError("bad_image", message)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation 1 to 8, from the header alone: Pillow would decode a whole PNG in search of a late chunk."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF, but the picture itself may be whole
        return 1
    return value if value in _UPRIGHT else 1


_PNG_SIGNATURE_BYTES = 8
_PNG_CHUNK_FRAME_BYTES = 12
"""Length, type and checksum around a chunk's data."""


def _png_is_whole(file: MediaFile) -> bool:
    """Whether every chunk up to the end marker is there, by jumping from one chunk's header to the next."""
    position = _PNG_SIGNATURE_BYTES
    while position + _PNG_CHUNK_FRAME_BYTES <= file.size:
        file.seek(position)
        length, kind = struct.unpack(">I4s", file.read(8))
        if kind == b"IEND":
            return True
        position += _PNG_CHUNK_FRAME_BYTES + length
    return False


def _webp_is_whole(file: MediaFile) -> bool:
    """Whether the file is as long as its RIFF header says, which does not count its own first 8 bytes."""
    file.seek(4)
    return int.from_bytes(file.read(4), "little") + 8 <= file.size

"""A still image's size, known from its header, and then its crops."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, Literal, cast

import numpy as np
from PIL import ExifTags, Image

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import CropShape, Scaling
from preshard.packer_service.ingest.media.open import MediaFile, open_media
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.sampling import as_written
from preshard.packer_service.ingest.media.scale import FullScaling, scaled
from preshard.packer_service.ingest.media.shape import ImageSize
from preshard.packer_service.ingest.media.shrink import Shrunk, whole_rgb
from preshard.packer_service.ingest.media.timeline import Timeline
from preshard.packer_service.ingest.media.video import VideoFrames, chosen_frames
from preshard.schemas.errors import DocumentError

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


def probe_image(medium: Medium, base: MediaReach, *, full_size: bool = False) -> ImageSize:
    """Reads an image's size from its header; no pixel is decoded.

    Args:
        medium: the image.
        base: what it is relative to, and what it may reach.
        full_size: whether it will be decoded at its full size, whatever its crops'.

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
        limit = max_pixels(kind, full_size=full_size)
        if width * height > limit:
            raise _too_large(file, f"{width} x {height}", limit)
        if (kind == "PNG" and not _png_is_whole(file)) or (kind == "WEBP" and not _webp_is_whole(file)):
            raise DocumentError("bad_image", f"{file.label}: the file is cut short")
    return ImageSize(width, height)


def probe_frames(
    medium: Medium, base: MediaReach, *, fps: float, max_frames: int, full_size: bool = False
) -> VideoFrames:
    """Chooses the frames of a video that is a list of images: all of them, unless it is cut or they are too many.

    Args:
        medium: the video; frame k is shown at k / ``fps`` seconds.
        base: what its frames are relative to, and what they may reach.
        fps: frames that are shown a second.
        max_frames: most frames, at least 1.
        full_size: see :func:`probe_image`.

    Raises:
        DocumentError: as in :func:`probe_image` for each frame, or ``bad_video``: their sizes differ, or the clip is
            empty or outside of the video.
    """
    sizes = [probe_image(frame, base, full_size=full_size) for frame in medium.frames]
    for frame, size in zip(medium.frames, sizes, strict=True):
        if size != sizes[0]:
            found = f"{frame.label} has {size.width} x {size.height} pixels and the first frame"
            reason = f"{found} {sizes[0].width} x {sizes[0].height}; scale the frames of a video to one size"
            raise DocumentError("bad_video", reason)
    line = Timeline(pts=np.arange(len(sizes), dtype=np.int64), origin=0, end=len(sizes))
    shown = (sizes[0].width, sizes[0].height)
    return chosen_frames(medium, line, 1 / as_written(fps), shown, fps=fps, max_frames=max_frames)


def decode_image(medium: Medium, base: MediaReach, crops: Sequence[CropShape], scaling: Scaling) -> list[Image.Image]:
    """Decodes an image once, into RGB crops of it.

    The whole image fills each canvas, upright as EXIF says, without keeping the aspect ratio. Transparent pixels show a
    white background, high bit depths are scaled to 8 bits, and of an animation the first frame is taken.

    Args:
        medium: the image that was probed.
        base: what it is relative to, and what it may reach.
        crops: what its family makes of it.
        scaling: how it becomes their canvases.

    Raises:
        DocumentError: ``missing_media``, ``bad_image`` as in the probe, or ``decode_failed``: the pixels are damaged.
    """
    sizes = {crop.canvas for crop in crops}
    with open_media(medium, base) as file, _opened(file) as image:
        turn = _UPRIGHT.get(_orientation(image))
        try:
            canvases = _reduced(image, sizes, turn) if scaling == "reduced" else _full(image, sizes, turn, scaling)
        except Exception as error:
            # Damaged pixels can surface as nearly any exception; one with a number comes from the file system.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = f"its pixels cannot be decoded ({type(error).__name__})"
            raise DocumentError("decode_failed", f"{file.label}: {reason}") from error
    return [canvases[crop.canvas].crop(crop.box) for crop in crops]


def _reduced(
    image: Image.Image, sizes: set[tuple[int, int]], turn: Image.Transpose | None
) -> dict[tuple[int, int], Image.Image]:
    """Canvases of a picture that is kept no larger than they need it."""
    largest = max(sizes)
    # A JPEG far larger than its canvas is decoded at a half, a quarter or an eighth, never below twice the canvas.
    side = 2 * max(largest)
    image.draft(None, (side, side))
    image.load()
    swaps = turn in _SWAPPING
    shrunk = Shrunk(image, largest[::-1] if swaps else largest)
    return {size: _turned(shrunk.scaled(size[::-1] if swaps else size), turn) for size in sizes}


def _full(
    image: Image.Image,
    sizes: set[tuple[int, int]],
    turn: Image.Transpose | None,
    scaling: FullScaling,
) -> dict[tuple[int, int], Image.Image]:
    """Canvases of the picture as it is, which is turned before it is scaled."""
    image.load()
    upright = _turned(whole_rgb(image), turn)
    return {size: scaled(upright, size, scaling) for size in sizes}


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


def max_pixels(kind: str | None, *, full_size: bool = False) -> int:
    """Most pixels of an image of a format whose decoding keeps within :data:`MAX_DECODER_BYTES`.

    Args:
        kind: the format, as Pillow names it.
        full_size: whether its RGB picture is held at full size besides, and a JPEG is not decoded smaller.
    """
    per_pixel = _BYTES_PER_PIXEL.get(kind or "", _PIXEL_BYTES)
    if full_size:
        per_pixel = max(per_pixel, _PIXEL_BYTES) + _PIXEL_BYTES
    return min(MAX_IMAGE_PIXELS, MAX_DECODER_BYTES // per_pixel)


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

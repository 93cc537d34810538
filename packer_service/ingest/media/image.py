"""The size of a still image, or of each page of a file, known from its header, and then its crops."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import BinaryIO, cast

from PIL import ExifTags, Image, UnidentifiedImageError

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import CropShape, Scaling
from preshard.packer_service.ingest.media.pdf import MAX_PAGES, is_pdf, page_sizes, rendered_page, several_pages
from preshard.packer_service.ingest.media.reach import MediaFile, MediaReach, open_media
from preshard.packer_service.ingest.media.scale import FullScaling, Shrunk, scaled, turned, whole_rgb
from preshard.packer_service.ingest.media.shape import DECODER_MIB, ImageSize, check_memory, image_bytes
from preshard.packer_service.ingest.signatures import BEGIN_BYTES, described
from preshard.schemas.errors import DocumentError

MAX_IMAGE_PIXELS = 178_956_970
"""Largest image of any format: twice ``Image.MAX_IMAGE_PIXELS``, above which Pillow takes a header for an attack."""

_NOT_A_PAGE = 1 | 4
"""Bits of a TIFF's NewSubfileType: a smaller copy of another page, and a mask."""

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
"""The transposition that undoes each EXIF orientation; 1 is upright."""

SWAPPING = tuple(_UPRIGHT[orientation] for orientation in (5, 6, 7, 8))
"""Turns that swap width and height."""


def probe_image(
    medium: Medium,
    base: MediaReach,
    *,
    full_size: bool = False,
    pages: str = "reject",
    dpi: int = 144,
    decoder_mib: int = DECODER_MIB,
) -> list[ImageSize]:
    """Reads the size of an image, or of each page of a file that is taken, from headers; no pixel is decoded.

    Args:
        medium: the image.
        base: what it is relative to, and what it may reach.
        full_size: whether it will be decoded at its full size, whatever its crops'.
        pages: what becomes of a file of several pages or frames: ``reject``, ``first`` or ``all``.
        dpi: pixels per inch of a PDF's pages.
        decoder_mib: memory of the process that will decode it.

    Raises:
        DocumentError: ``missing_media``, or ``bad_image``: empty, not an image, of several pages where these are
            rejected, too large for the decoder, or (PNG and WebP, whose length is known from their headers) cut short.
    """
    with open_media(medium, base) as file:
        if not file.size:
            raise DocumentError("bad_image", f"{file.label}: the file is empty")
        if is_pdf(file):
            found: list[_Page] = [(size, "PDF", False) for size in page_sizes(file, dpi, pages)]
        else:
            with _opened(file) as image:
                found = [_page_facts(image, file, number) for number in _page_numbers(image, file.label, pages)]
        for size, kind, turned in found:
            need = image_bytes(kind, size.width * size.height, full_size=full_size, turned=turned)
            check_memory("bad_image", f"{file.label}: {size.width} x {size.height} pixels", need, decoder_mib)
            if (kind == "PNG" and not _png_is_whole(file)) or (kind == "WEBP" and not _webp_is_whole(file)):
                raise DocumentError("bad_image", f"{file.label}: the file is cut short")
    return [size for size, _, _ in found]


_Page = tuple[ImageSize, str | None, bool]
"""Size and format of a page, and whether it has to be turned."""


def _page_facts(image: Image.Image, file: MediaFile, number: int) -> _Page:
    if number:
        image.seek(number)
    (width, height), orientation = image.size, _orientation(image, file)
    if image.format == "TIFF":  # whose ``size`` is that of the stored or the turned page, by Pillow's version
        tags = image.tag_v2  # type: ignore[attr-defined]
        width, height = tags[ExifTags.Base.ImageWidth], tags[ExifTags.Base.ImageLength]
    if _UPRIGHT.get(orientation) in SWAPPING:
        width, height = height, width
    kind = f"progressive {image.format}" if "progressive" in image.info else image.format
    return ImageSize(width, height), kind, orientation > 1


def _page_numbers(image: Image.Image, label: str, pages: str) -> list[int]:
    """Numbers of the pages of a TIFF, or frames of an animation, that are taken. Other pictures that a camera puts into
    a JPEG (MPO), and smaller copies and masks in a TIFF, are no pages.

    Raises:
        DocumentError: ``bad_image``: there are several, and these are rejected.
    """
    if image.format not in ("TIFF", "GIF", "PNG", "WEBP", "AVIF") or pages == "first":
        return [0]
    try:
        count = int(getattr(image, "n_frames", 1))
        numbers = [0, *(n for n in range(1, count) if n < MAX_PAGES and _is_page(image, n))]
        image.seek(0)
    except Exception as error:  # a damaged header can surface as nearly any exception
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DocumentError("bad_image", f"{label}: the pages behind the first cannot be read") from error
    if len(numbers) == 1 or (pages == "all" and count <= MAX_PAGES):
        return numbers
    what = "pages" if image.format == "TIFF" else "frames"
    video = ", or give the file as a video" if image.format in ("GIF", "PNG") else ""  # FFmpeg reads no WebP that moves
    if pages == "all":
        raise DocumentError("bad_image", f"{label}: has {count} {what}, more than the limit of {MAX_PAGES}; divide it")
    raise several_pages(label, f"{len(numbers)} {what}", video)


def _is_page(image: Image.Image, number: int) -> bool:
    if image.format != "TIFF":
        return True
    image.seek(number)
    return not int(getattr(image, "tag_v2", {}).get(ExifTags.Base.NewSubfileType, 0)) & _NOT_A_PAGE


def decode_image(
    medium: Medium, base: MediaReach, crops: Sequence[CropShape], scaling: Scaling, *, dpi: int = 144
) -> list[Image.Image]:
    """Decodes an image once, into RGB crops of it.

    The whole image fills each canvas, upright as EXIF says, without keeping the aspect ratio. Transparent pixels show a
    white background, and high bit depths are scaled to 8 bits.

    Args:
        medium: the image that was probed, or a page of it.
        base: what it is relative to, and what it may reach.
        crops: what its family makes of it.
        scaling: how it becomes their canvases.
        dpi: as it was probed.

    Raises:
        DocumentError: ``missing_media``, ``bad_image`` as in the probe, or ``decode_failed``: the pixels are damaged.
    """
    sizes = {crop.canvas for crop in crops}
    with open_media(medium, base) as file, _page(file, medium.page or 0, dpi) as image:
        try:
            turn = _turn(image, file)
            canvases = _reduced(image, sizes, turn) if scaling == "reduced" else _full(image, sizes, turn, scaling)
        except Exception as error:  # damaged bytes can make a decoder raise nearly anything
            raise _undecodable(file, error) from error
    return [canvases[crop.canvas].crop(crop.box) for crop in crops]


def image_digest(medium: Medium, base: MediaReach, *, dpi: int = 144) -> bytes:
    """A hash of an image's size and pixels, upright and in RGB, whatever file holds them.

    Raises:
        DocumentError: as in :func:`decode_image`.
    """
    with open_media(medium, base) as file, _page(file, medium.page or 0, dpi) as image:
        try:
            turn = _turn(image, file)
            image.load()
            upright = turned(whole_rgb(image), turn)
        except Exception as error:  # damaged bytes can make a decoder raise nearly anything
            raise _undecodable(file, error) from error
        digest = blake2b(str(upright.size).encode(), digest_size=16)
        digest.update(upright.tobytes())
        return digest.digest()


def _undecodable(file: MediaFile, error: Exception) -> Exception:
    """Damaged pixels can surface as nearly any exception; one with a number comes from the file system."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    why = " ".join(str(error).split()) or type(error).__name__
    return DocumentError("decode_failed", f"{file.label}: its pixels cannot be decoded: {why}")


def _reduced(
    image: Image.Image, sizes: set[tuple[int, int]], turn: Image.Transpose | None
) -> dict[tuple[int, int], Image.Image]:
    """Canvases of a picture that is kept no larger than they need it."""
    largest = max(sizes)
    # A JPEG far larger than its canvas is decoded at a half, a quarter or an eighth, never below twice the canvas.
    side = 2 * max(largest)
    image.draft(None, (side, side))
    image.load()
    swaps = turn in SWAPPING
    shrunk = Shrunk(image, largest[::-1] if swaps else largest)
    return {size: turned(shrunk.scaled(size[::-1] if swaps else size), turn) for size in sizes}


def _full(
    image: Image.Image,
    sizes: set[tuple[int, int]],
    turn: Image.Transpose | None,
    scaling: FullScaling,
) -> dict[tuple[int, int], Image.Image]:
    """Canvases of the picture as it is, which is turned before it is scaled."""
    image.load()
    upright = turned(whole_rgb(image), turn)
    return {size: scaled(upright, size, scaling) for size in sizes}


@contextmanager
def _page(file: MediaFile, number: int, dpi: int) -> Iterator[Image.Image]:
    """A page of an open file.

    Raises:
        DocumentError: ``decode_failed``: it is not there any more.
    """
    if is_pdf(file):
        yield rendered_page(file, number, dpi)
        return
    with _opened(file) as image:
        try:
            if number:
                image.seek(number)
        except Exception as error:  # damaged bytes can make a decoder raise nearly anything
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DocumentError("decode_failed", f"{file.label}: the page cannot be read") from error
        yield image


@contextmanager
def _opened(file: MediaFile) -> Iterator[Image.Image]:
    file.seek(0)
    # Where warnings are turned into errors, a strange but whole image must not become a bad one.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(cast(BinaryIO, file), formats=_FORMATS)
        except Image.DecompressionBombError as error:
            reason = f"its header's size is above the limit of {MAX_IMAGE_PIXELS} pixels; scale the image down"
            raise DocumentError("bad_image", f"{file.label}: {reason}") from error
        except Exception as error:  # a damaged header can surface as nearly any exception
            # One with a number comes from the file system.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            file.seek(0)
            raise DocumentError("bad_image", f"{file.label}: {_why_not(file.read(BEGIN_BYTES), error)}") from error
        with image:
            yield image


def _why_not(begin: bytes, error: Exception) -> str:
    """Reason for which Pillow does not open a file with these first bytes."""
    what = described(begin)
    if what is None:
        return "not an image of a format that is read; convert it to PNG"
    more = "" if isinstance(error, UnidentifiedImageError) else f": {error}; save it again"
    return f"not an image that can be read; it is {what}{more}"


def _turn(image: Image.Image, file: MediaFile) -> Image.Transpose | None:
    """Transposition that brings an image upright once its pixels are loaded; Pillow turns a TIFF when it loads it."""
    return None if image.format == "TIFF" else _UPRIGHT.get(_orientation(image, file))


def _orientation(image: Image.Image, file: MediaFile) -> int:
    """Orientation 1 to 8, wherever ``PIL.ImageOps.exif_transpose`` finds one, without decoding a pixel."""
    try:
        exif = _png_exif(file) if image.format == "PNG" else image.getexif()
        value = exif.get(ExifTags.Base.Orientation, 1)
    except Exception as error:  # damaged EXIF, but the picture itself may be whole
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return 1
    return value if value in _UPRIGHT else 1


_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNK_FRAME_BYTES = 12
"""Length, type and checksum around a chunk's data."""
_PNG_ORIENTING = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")
"""Chunks that may say how a PNG is turned: as EXIF, as a raw profile, or in XMP."""
_PNG_ONE_PIXEL = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)


def _png_exif(file: MediaFile) -> Image.Exif:
    """EXIF that Pillow finds in a PNG's chunks before and behind its pixels, with one pixel in their place.

    Pillow reads those behind the pixels only after it has decoded them.
    """
    position, parts, moves, behind = file.tell(), list[bytes](), False, False
    try:
        for kind, start, length in _png_chunks(file):
            moves = moves or kind == b"acTL"
            if kind == b"IDAT" and not behind:
                behind = True
                parts.append(_png_chunk(b"IDAT", zlib.compress(bytes(2))))
            elif kind == b"fcTL" and behind and moves:  # the next frame
                break
            elif kind in _PNG_ORIENTING:
                file.seek(start)
                parts.append(_png_chunk(kind, file.read(length)))
    finally:
        file.seek(position)
    if len(parts) < 2:
        return Image.Exif()
    small = b"".join((_PNG_SIGNATURE, _png_chunk(b"IHDR", _PNG_ONE_PIXEL), *parts, _png_chunk(b"IEND", b"")))
    with Image.open(io.BytesIO(small), formats=("PNG",)) as image:
        image.load()
        return image.getexif()


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png_chunks(file: MediaFile) -> Iterator[tuple[bytes, int, int]]:
    """Kind of each chunk that lies within the file, and place and length of its data; the last may be ``IEND``."""
    position = len(_PNG_SIGNATURE)
    while position + _PNG_CHUNK_FRAME_BYTES <= file.size:
        file.seek(position)
        length, kind = struct.unpack(">I4s", file.read(8))
        yield kind, position + 8, length
        if kind == b"IEND":
            return
        position += _PNG_CHUNK_FRAME_BYTES + length


def _png_is_whole(file: MediaFile) -> bool:
    """Whether every chunk up to the end marker is there, by jumping from one chunk's header to the next."""
    return any(kind == b"IEND" for kind, _, _ in _png_chunks(file))


def _webp_is_whole(file: MediaFile) -> bool:
    """Whether the file is as long as its RIFF header says, which does not count its own first 8 bytes."""
    file.seek(4)
    return int.from_bytes(file.read(4), "little") + 8 <= file.size

"""What decoding takes of memory, from what a header says, and the reject of what takes more than there is."""

from __future__ import annotations

from preshard.schemas.errors import DocumentError

MIB = 1 << 20

DECODER_MIB = 512
"""The default of ``decoder_mib`` in the configuration."""

BASE_BYTES = 128 * MIB
"""What the decoder's process takes besides pixels: the interpreter and the libraries."""

# Bytes per pixel while an image is decoded, as measured. JPEG is decoded at a fraction of its size; the others hold an
# animation's canvases, whole planes or strips, samples of 32 bits, or coefficients besides the picture.
_BYTES_PER_PIXEL = {
    "JPEG": 2, "progressive JPEG": 8, "PDF": 8, "TIFF": 10, "PPM": 10, "AVIF": 12, "WEBP": 16, "JPEG2000": 25,
}  # fmt: skip

_PIXEL_BYTES = 4
"""Bytes of a pixel as Pillow keeps it, in the formats that need no more while they are decoded."""

_TURNED_BYTES = 10
"""Bytes per pixel where a picture at full size is turned, as EXIF says: it is held twice then."""

_FRAMES = {"hevc": 6, "av1": 6, "libdav1d": 6, "h264": 4}
"""Frames that a decoder holds at least, of streams with B-frames; others hold two or more."""

_FRAME_EXTRA = 0.8
"""Bytes per pixel that a held frame takes beside its samples: motion vectors, edges."""

_FULL_FRAME_BYTES = 5
"""Bytes per pixel of the RGB frame from which some families scale."""

ROUND_MIB = 256
SPARE = 1.5
"""Needs are least ones: streams may refer to more frames."""


def image_bytes(kind: str | None, pixels: int, *, full_size: bool, turned: bool) -> int:
    """What decoding an image takes.

    Args:
        kind: its format, as Pillow names it, or ``PDF``.
        pixels: how many it has.
        full_size: whether its RGB picture is held at full size besides, and a JPEG is not decoded smaller.
        turned: whether it is stored on its side or upside down.
    """
    per_pixel = _BYTES_PER_PIXEL.get(kind or "", _PIXEL_BYTES)
    if full_size:
        per_pixel = max(max(per_pixel, _PIXEL_BYTES) + _PIXEL_BYTES, _TURNED_BYTES * turned)
    return BASE_BYTES + pixels * per_pixel


def video_bytes(codec: str, pixels: int, bits_per_pixel: int, *, full_size: bool) -> int:
    """What decoding a video takes at least.

    Args:
        codec: its name in FFmpeg.
        pixels: of a frame.
        bits_per_pixel: of the decoder's frames.
        full_size: whether frames are scaled from RGB at their full size.
    """
    per_pixel = _FRAMES.get(codec, 2) * (bits_per_pixel / 8 + _FRAME_EXTRA) + _FULL_FRAME_BYTES * full_size
    return BASE_BYTES + int(pixels * per_pixel)


def check_memory(code: str, what: str, need: int, decoder_mib: int = DECODER_MIB) -> None:
    """Rejects what cannot be decoded in the memory that the configuration gives.

    Args:
        code: of the reject.
        what: the file and its size, for the message.
        need: bytes.
        decoder_mib: as in the configuration.

    Raises:
        DocumentError: it needs more.
    """
    if need > decoder_mib * MIB:
        enough = -(-int(need * SPARE) // (ROUND_MIB * MIB)) * ROUND_MIB
        raise DocumentError(
            code,
            f"{what} need about {-(-need // MIB)} MiB to decode, more than decoder_mib {decoder_mib}; "
            f"set decoder_mib to {enough}, or scale it down",
        )

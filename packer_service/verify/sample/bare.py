"""Bytes of a crop besides its picture, of which there may be none: decoders pass over them, or turn it by them."""

from __future__ import annotations

import struct

_NAMED = {0xE1: "EXIF or XMP", 0xE2: "a colour profile", 0xFE: "a comment"}
"""Segments of a JPEG by what they hold; others are called by their number."""

_APP1, _APP15, _COMMENT, _SCAN = 0xE1, 0xEF, 0xFE, 0xDA
"""Markers of a JPEG: the applications' segments behind JFIF's own, comments, and where the picture begins."""

_CHUNKS = (b"IHDR", b"IDAT", b"IEND")


def find_extra(data: bytes, image_format: str) -> str:
    """Says what the bytes of a crop hold besides the picture; empty if it is nothing.

    Args:
        data: a whole picture that decodes.
        image_format: ``jpeg`` or ``png``, as in the configuration.
    """
    return _in_jpeg(data) if image_format == "jpeg" else _in_png(data)


def _in_jpeg(data: bytes) -> str:
    at = 2
    while data[at] == 0xFF and (marker := data[at + 1]) != _SCAN:
        if _APP1 <= marker <= _APP15 or marker == _COMMENT:
            return f"{_NAMED.get(marker, 'a segment')} (marker {marker:02X}) at byte {at}"
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return _behind(data, data.find(b"\xff\xd9", at) + 2)  # in the picture's code a zero follows every FF


def _in_png(data: bytes) -> str:
    at, kind = 8, b""
    while kind != b"IEND":
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind not in _CHUNKS:
            return f"a chunk {kind.decode('ascii', 'replace')} at byte {at}"
        at += 12 + size
    return _behind(data, at)


def _behind(data: bytes, end: int) -> str:
    return "" if end == len(data) else f"{len(data) - end} bytes behind its end"

"""Says what a file is that was taken for another, by its first bytes, and what makes of it what was meant."""

from __future__ import annotations

import re

BEGIN_BYTES = 4096
"""First bytes of a file that are looked at."""

_LFS = b"version https://git-lfs.github.com/spec/"
_ANNEX = re.compile(rb"(/annex/objects/|(\.\./)*\.git/annex/objects/)")
_PAGE = re.compile(rb"<(!doctype html|html|head|body)\b", re.IGNORECASE)
_DRAWING = re.compile(rb"<(\w+:)?svg\b")

_MARKED = {
    "UTF-32": re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff"),
    "UTF-16": re.compile(rb"\xff\xfe[^\0]\0|\xfe\xff\0"),
    "UTF-16LE": re.compile(rb"([\t\r\n -~]\0){8}"),
    "UTF-16BE": re.compile(rb"(\0[\t\r\n -~]){8}"),
}
"""Encodings whose units have several bytes, by a byte order mark before ASCII, or ASCII alone."""

_BOXES = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"), "HEIC"),
    b"avif": "AVIF",
    b"avis": "AVIF",
    b"crx ": "a raw photograph (CR3)",
}
"""Formats other than video, by the brand of a file of boxes (ISO/IEC 14496-12)."""

_TO_JPEG = "convert it to JPEG"
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF"),
    (b"%PDF-", "a PDF"),
    (b"\xff\x0a", f"JPEG XL; {_TO_JPEG}"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", f"JPEG XL; {_TO_JPEG}"),
    (b"8BPS", f"a Photoshop file; {_TO_JPEG}"),
    (b"%!PS", f"PostScript; {_TO_JPEG}"),
    (b"\x76\x2f\x31\x01", f"OpenEXR; {_TO_JPEG}"),
    (b"#?RADIANCE", f"a Radiance picture; {_TO_JPEG}"),
    (b"\0\0\1\0", f"an icon; {_TO_JPEG}"),
    (b"icns", f"an icon; {_TO_JPEG}"),
    (b"DDS ", f"a DirectDraw surface; {_TO_JPEG}"),
    (b"qoif", f"a QOI image; {_TO_JPEG}"),
    (b"\x93NUMPY", "an array of NumPy"),
    (b"\x1a\x45\xdf\xa3", "a Matroska or WebM video"),
    (b"PK\x03\x04", "a ZIP archive; unpack it"),
    (b"\x1f\x8b", "compressed by gzip; unpack it"),
    (b"\x28\xb5\x2f\xfd", "compressed by Zstandard; unpack it"),
    (b"\xfd7zXZ\0", "compressed by xz; unpack it"),
    (b"BZh", "compressed by bzip2; unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it"),
    (b"Rar!", "a RAR archive; unpack it"),
    (b"ID3", "sound"),
    (b"fLaC", "sound"),
)


def stand_in(begin: bytes) -> str | None:
    """Description of what lies in place of a file, to follow "it is", and a remedy; None if nothing is known to.

    Args:
        begin: its first :data:`BEGIN_BYTES` bytes.
    """
    if begin.startswith(_LFS):
        return "a Git LFS pointer in place of the file; run git lfs pull in its repository"
    if _ANNEX.match(begin):
        return "a git-annex pointer in place of the file; run git annex get in its repository"
    if begin and not begin.strip(b"\0"):
        return "nothing but zeros; copy it again"
    text = begin.lstrip(b"\xef\xbb\xbf \t\r\n")
    return _markup(text) if text.startswith(b"<") else None


def described(begin: bytes) -> str | None:
    """The same of a file of any kind, which may be whole, only not what it was taken for."""
    if found := stand_in(begin):
        return found
    if begin[4:8] == b"ftyp":
        kind = _BOXES.get(begin[8:12])
        return "an MP4 or QuickTime video" if kind is None else f"{kind}; {_TO_JPEG}"
    if begin[:4] == b"RIFF":
        return {b"AVI ": "an AVI video", b"WAVE": "sound", b"WEBP": "a WebP image"}.get(begin[8:12])
    if begin[128:132] == b"DICM":
        return f"a DICOM file; {_TO_JPEG}"
    return next((what for signature, what in _SIGNATURES if begin.startswith(signature)), None)


def encoding(begin: bytes) -> str | None:
    """The encoding of text whose units have several bytes, None for any other."""
    return next((name for name, mark in _MARKED.items() if mark.match(begin)), None)


def _markup(text: bytes) -> str:
    if _DRAWING.search(text):
        return "an SVG drawing; convert it to PNG"
    if _PAGE.search(text):
        return "an HTML page, as servers send in place of a file; download it again"
    return "an XML document, as stores send in place of a file; download it again"

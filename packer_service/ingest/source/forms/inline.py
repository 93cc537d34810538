"""Images and videos told by what they are: the first bytes of files, base64 of them, data URIs, endings of names."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any
from urllib.parse import unquote

IMAGE_SUFFIXES = frozenset(["apng", "avif", "bmp", "gif", "jfif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp"])
VIDEO_SUFFIXES = frozenset(["avi", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "ogv", "ts", "webm", "wmv"])

_TELLING_SUFFIXES = (IMAGE_SUFFIXES | VIDEO_SUFFIXES | {"wav", "mp3", "flac"}) - {"ts"}  # TypeScript's ending, too
_LONGEST_NAME = 1000
"""Most characters of a text that may be a path, where nothing else says that it is one."""
_SIGNATURES = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n|GIF8[79]a|RIFF....(?:WEBP|AVI )|BM....\0\0\0\0|II\*\0|MM\0\*|....ftyp"
    rb"|\0\0\0\x0cjP  |P[1-6]\s|%PDF-|\x1aE\xdf\xa3|FLV\x01|\0\0\x01\xba",
    re.DOTALL,
)
"""First bytes of files of images, PDF and videos."""
_HEAD = 24
"""Characters of base64 that hold all of a signature."""
_BEGINNINGS = frozenset(("/9", "iV", "R0", "Uk", "Qk", "SU", "TU", "AA", "UD", "JV", "Gk", "Rk", "_9", "b'", 'b"'))
"""Beginnings of signatures in base64, in both alphabets, so that few texts have to be decoded."""
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]+={0,2}\s*")
_NOT_A_PATH = 300
"""Length from which a text in the letters of base64, without a dot, is not taken for a path."""
_DATA_URI = re.compile(r"(?i)(?:data:)?([a-z0-9]*)(?:/[\w.+-]*)?((?:;[^;,]*)*),", re.ASCII)
_PYTHON_BYTES = re.compile(r"b(['\"])(.*)\1", re.DOTALL)


def is_media_file(data: bytes) -> bool:
    """Whether bytes begin as a file of an image, a PDF or a video does."""
    return _SIGNATURES.match(data) is not None


def is_base64(text: str) -> bool:
    """Whether a text that might be a path is base64: of a file that is known, or too long for a path."""
    if len(text) < _NOT_A_PATH and text[:2] not in _BEGINNINGS and not text[:1].isspace():
        return False
    given = _bare(text)
    if len(given) < _NOT_A_PATH and not is_media_file(_decoded(given[:_HEAD]) or b""):
        return False
    return _BASE64.fullmatch(given) is not None and _decoded(given) is not None


def decode_base64(text: str) -> bytes | None:
    """Bytes that base64 spells, in the usual alphabet or that of URLs, with line breaks or without padding; None if it
    is not base64.
    """
    given = _bare(text)
    return _decoded(unquote(given) if "%" in given else given)


def _bare(text: str) -> str:
    """A text without what Python writes around bytes."""
    given = text.strip()
    return found.group(2) if given[:1] == "b" and (found := _PYTHON_BYTES.fullmatch(given)) else given


def _decoded(text: str) -> bytes | None:
    letters = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def split_data_uri(text: str) -> tuple[str, list[str], str] | None:
    """The kind, the parameters and the data of a data URI, which may lack its ``data:``; None of any other text."""
    has_scheme = text[:5].lower() == "data:"
    if not has_scheme and "base64," not in text[:100].lower():
        return None
    found = _DATA_URI.match(text)
    if found is None:
        return ("none", [], "") if has_scheme else None
    kind, parameters = found.group(1).lower(), [each.strip().lower() for each in found.group(2).split(";")]
    if kind == "base64":  # data:base64,...
        kind, parameters = "", ["base64"]
    return kind, parameters, text[found.end() :]


def holds_media(value: Any) -> bool:
    """Whether a value of a row is an image, video or sound, or names one, as far as the value itself can tell.

    Addresses on the web do not count: they say where something is from, and nothing reads them.
    """
    if isinstance(value, str):
        return _is_media_text(value)
    if isinstance(value, bytes):
        return is_media_file(value)
    if isinstance(value, dict):
        inside = value.get("bytes"), value.get("path")
        return value.keys() <= {"bytes", "path"} and (isinstance(inside[0], bytes) or any(map(holds_media, inside)))
    if isinstance(value, list):
        return any(map(holds_media, value[:1]))
    return False


def _is_media_text(text: str) -> bool:
    if text[-6:].rpartition(".")[2].lower() in _TELLING_SUFFIXES and "." in text[-6:]:
        is_name = len(text) <= _LONGEST_NAME and text[:4].lower() != "http" and "\n" not in text
        return is_name and not _is_sentence(text)
    if text[:5].lower() == "data:" or "base64," in text[:40]:
        return text[:100].lower().removeprefix("data:").startswith(("image", "video", "audio", "base64", ";base64"))
    if len(text) <= _HEAD or (text[:2] not in _BEGINNINGS and not text[:1].isspace()):
        return False
    return is_media_file(_decoded(_bare(text[: 2 * _HEAD])[:_HEAD]) or b"") and is_base64(text)


def _is_sentence(text: str) -> bool:
    """Whether words precede the name of a file: a text that ends with one."""
    return len(text.split()) > 4

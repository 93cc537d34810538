"""References to images and videos in every shape that rows have: paths, URIs, bytes, data URIs, columns."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import unquote_to_bytes

from preshard.packer_service.ingest.document import Medium, MediumKind
from preshard.packer_service.ingest.source.forms.fields import (
    bad,
    kind_of,
    listed,
    number,
    shown,
    strict_object,
    string,
    whole_number,
)
from preshard.schemas.config import MAX_FRAMES

MAX_URI = 8000
"""Most characters of an image's or video's path or URI, which messages repeat."""
MAX_FPS = 1000.0
"""The limit of ``video.fps`` in the configuration."""

PLACES = {"image": ("image", "url", "path", "bytes", "base64"), "video": ("video", "url", "path", "bytes", "base64")}
"""Keys of a part that say where its image or video is; a part has one of them."""
CLIP = ("start", "end", "video_start", "video_end", "fps", "max_frames")
KEYS = {"image": ("type", *PLACES["image"]), "video": ("type", *PLACES["video"], *CLIP)}
IMAGE_SUFFIXES = frozenset(["apng", "avif", "bmp", "gif", "jfif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp"])
VIDEO_SUFFIXES = frozenset(["avi", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "ogv", "ts", "webm", "wmv"])


def medium(given: Any, where: str) -> Medium:
    """A part of a content list that is no text. A part that only says its kind has neither ``uri`` nor ``data`` yet.

    Raises:
        DocumentError: ``bad_row``.
    """
    if not isinstance(given, dict):
        bad(f"{where} is a {kind_of(given)}, not an object with a type")
    kind: Any = given.get("type")
    if isinstance(kind, str) and kind in ("image_url", "video_url"):
        return _of_openai(given, kind, where)
    if kind not in get_args(MediumKind):
        bad(f"{where}.type is {shown(kind)}; legal are text, image, video, image_url, video_url")
    part = strict_object(given, where, KEYS[kind], "a type")
    return _with_clip(_placed(part, kind, where), part, where)


def _of_openai(given: dict[str, Any], name: str, where: str) -> Medium:
    """A part in OpenAI's form: ``{"type": "image_url", "image_url": {"url": ...}}``; vLLM has the same for videos."""
    kind: MediumKind = "image" if name == "image_url" else "video"
    part = strict_object(given, where, ("type", name), name)
    value = part.get(name)
    if isinstance(value, dict):
        known = ("url", "detail") if kind == "image" else ("url", *CLIP)
        inner = strict_object(value, f"{where}.{name}", known, "a url")
        if inner.get("detail") not in (None, "auto", "high"):
            found = shown(inner["detail"])
            bad(f"{where}.{name}.detail is {found}; images are shown as vision.* says, so legal are auto and high")
        return _with_clip(reference(inner.get("url"), kind, f"{where}.{name}.url"), inner, f"{where}.{name}")
    return reference(value, kind, f"{where}.{name}")


def _placed(part: Mapping[str, Any], kind: MediumKind, where: str) -> Medium:
    places = [name for name in PLACES[kind] if name in part]
    if len(places) > 1:
        bad(f"{where} has {' and '.join(places)}; give exactly one of {', '.join(PLACES[kind])}")
    if not places:
        return Medium(kind=kind)
    [name] = places
    value = part[name]
    if name == "bytes" and not isinstance(value, bytes):
        bad(f"{where}.bytes is a {kind_of(value)}, not bytes")
    if name == "base64":
        return Medium(kind=kind, data=_decoded(string(value, f"{where}.base64"), f"{where}.base64"))
    return reference(value, kind, f"{where}.{name}")


def _with_clip(found: Medium, part: Mapping[str, Any], where: str) -> Medium:
    """The medium with the part of a video that is shown, and how densely."""
    if found.kind == "image":
        return found
    for name in ("start", "end"):
        if name in part and f"video_{name}" in part:
            bad(f"{where} has {name} and video_{name}; give one of them")
    clip = {name.removeprefix("video_"): (name, part[name]) for name in CLIP if name in part}
    times: dict[str, float] = {}
    for name in ("start", "end", "fps"):
        if name in clip:
            key, value = clip[name]
            times[name] = number(value, f"{where}.{key}", "a number of seconds" if name != "fps" else "a number")
    if not 0 < times.get("fps", 1) <= MAX_FPS:
        bad(f"{where}.fps is {shown(clip['fps'][1])}; legal are numbers above 0 and up to {MAX_FPS:g}")
    most = whole_number(clip["max_frames"][1], f"{where}.max_frames", MAX_FRAMES) if "max_frames" in clip else None
    return Medium(kind="video", uri=found.uri, data=found.data, max_frames=most, **times)


def reference(value: Any, kind: MediumKind, where: str) -> Medium:
    """A path or URI, bytes, or the ``{"bytes", "path"}`` of a Hugging Face image or video column.

    Raises:
        DocumentError: ``bad_row``.
    """
    if isinstance(value, dict):
        inner = strict_object(value, where, ("bytes", "path"), "bytes or a path")
        if "bytes" in inner and not isinstance(inner["bytes"], bytes):
            bad(f"{where}.bytes is a {kind_of(inner['bytes'])}, not bytes")
        value = inner.get("bytes", inner.get("path"))  # beside bytes, the path is only the file's name
    if isinstance(value, bytes):
        return Medium(kind=kind, data=value)
    uri = string(value, where)
    if uri[:5].lower() == "data:":
        return Medium(kind=kind, data=_data_uri(uri, kind, where))
    if not uri or "\0" in uri or len(uri) > MAX_URI:
        bad(f"{where} is {shown(uri)}, not the path or URI of a file, of at most {MAX_URI} characters")
    return Medium(kind=kind, uri=uri)


def references(value: Any, kind: MediumKind, where: str) -> list[Medium]:
    """A column of one image or video, or of a list of them."""
    if not isinstance(value, list):
        return [reference(value, kind, where)]
    return [reference(item, kind, f"{where}[{i}]") for i, item in enumerate(listed(value, where))]


def _data_uri(uri: str, kind: MediumKind, where: str) -> bytes:
    head, comma, data = uri[5:].partition(",")
    mime, *parameters = head.lower().split(";")
    if not comma or (mime and not mime.startswith((f"{kind}/", "application/octet-stream"))):
        bad(f"{where} is {shown(uri)}, not a data URI of an {kind}".replace("an video", "a video"))
    if "base64" in (parameter.strip() for parameter in parameters):
        return _decoded(data, where)
    return unquote_to_bytes(data)


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        bad(f"{where} is {shown(text)}, which is not base64")


def kind_by_name(value: Any) -> MediumKind:
    """Whether a reference is a video, by the end of its name; anything else is taken for an image."""
    if isinstance(value, dict):
        value = value.get("path")
    if isinstance(value, list) and value:
        return kind_by_name(value[0])
    suffix = value.rpartition(".")[2].lower() if isinstance(value, str) else ""
    return "video" if suffix in VIDEO_SUFFIXES else "image"
